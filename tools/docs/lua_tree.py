"""What a Lua script does, as a tree: loops, branches and Redis calls in the order of the source, with comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*)|(?P<string>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")|(?P<name>[A-Za-z_][A-Za-z_0-9.]*)"
    r"|(?P<number>\d[\d.]*)|(?P<newline>\n)|(?P<blank>[ \t]+)|(?P<symbol>\.\.|==|~=|<=|>=|.)"
)
_CALLS = ("redis.call", "redis.pcall")


@dataclass(slots=True)
class Node:
    """`kind` is call, use (of an included function), loop, branch, return or note; loops and branches have children."""

    kind: str
    text: str
    why: str = ""
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int
    start: int
    end: int


def tokens(source: str) -> list[Token]:
    found, line = [], 1
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind != "blank":
            found.append(Token(kind, match.group(), line, match.start(), match.end()))
    return found


class Tree:
    """Reads one source. `known` are functions of includes: name -> the commands they run; the rest is arithmetic."""

    def __init__(self, source: str, known: Mapping[str, str]) -> None:
        self._source = source
        self._known = known
        every = tokens(source)
        self._tokens = [token for token in every if token.kind != "comment"]
        code_lines = {token.line for token in self._tokens}
        self._trailing = {t.line: _said(t) for t in every if t.kind == "comment" and t.line in code_lines}
        self._above: dict[int, str] = {}
        prose = ""
        for token in every:
            if token.kind == "comment" and token.line not in code_lines:
                prose = f"{prose} {_said(token)}".strip()
            elif token.kind != "comment" and prose:
                self._above[token.line] = prose
                prose = ""
        self._above.pop(min(code_lines, default=0), None)  # the head of the file
        self._told: set[int] = set()
        self._at = 0
        self.functions: dict[str, list[Node]] = {}
        self.nodes = self._block()

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _block(self) -> list[Node]:
        """Statements up to, and without, the word that closes them."""
        nodes: list[Node] = []
        while (token := self._peek()) is not None and token.text not in ("end", "else", "elseif", "until"):
            found = self._statement(token)
            if token.line in self._above and token.line not in self._told:
                nodes.append(Node("note", self._above[token.line]))
                self._told.add(token.line)
            nodes += found
        return nodes

    def _statement(self, token: Token) -> list[Node]:
        self._at += 1
        match token.text:
            case "for" | "while":
                header, inside = self._until("do")
                why = self._why(token)
                node = Node("loop", f"{token.text} {header}", why, self._closed())
                return [*inside, node]
            case "if":
                return self._branches(token)
            case "function":
                return self._function()
            case "do":
                return self._closed()
            case "repeat":
                body = self._block()
                self._at += 1  # until
                return [Node("loop", "repeat", self._why(token), body)]
            case "return":
                return [*self._expression(token.line), Node("return", self._line_from(token), self._why(token))]
        return self._called(token)

    def _branches(self, token: Token) -> list[Node]:
        condition, nodes = self._until("then")
        nodes.append(Node("branch", f"if {condition}", self._why(token), self._block()))
        while (word := self._peek()) is not None:
            self._at += 1
            if word.text == "elseif":
                condition, inside = self._until("then")
                children = inside + self._block()
                nodes.append(Node("branch", f"else if {condition}", self._why(word), children))
            elif word.text == "else":
                nodes.append(Node("branch", "else", self._why(word), self._block()))
            else:
                break
        return nodes

    def _function(self) -> list[Node]:
        name = ""
        if (token := self._peek()) is not None and token.kind == "name":
            name = token.text
            self._at += 1
        while (token := self._peek()) is not None and token.text != ")":
            self._at += 1
        self._at += 1
        body = self._closed()
        if name:
            self.functions[name] = body
            return []
        return body

    def _closed(self) -> list[Node]:
        body = self._block()
        self._at += 1  # end
        return body

    def _until(self, word: str) -> tuple[str, list[Node]]:
        """The text up to a word, and the calls in it: they come before the block."""
        first = self._peek()
        inside: list[Node] = []
        while (token := self._peek()) is not None and token.text != word:
            self._at += 1
            inside += self._function() if token.text == "function" else self._called(token)
        last = self._tokens[self._at - 1]
        self._at += 1
        return _tidy(self._source[first.start : last.end] if first else ""), inside

    def _expression(self, line: int) -> list[Node]:
        """Calls in what is returned; an anonymous table or call may go on over several lines."""
        nodes: list[Node] = []
        depth = 0
        while (token := self._peek()) is not None and token.text not in ("end", "else", "elseif", "until"):
            if depth == 0 and token.line != line:
                break
            depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(token.text, 0)
            self._at += 1
            nodes += self._function() if token.text == "function" else self._called(token)
        return nodes

    def _called(self, token: Token) -> list[Node]:
        if token.text in _CALLS:
            return [Node("call", self._command(), self._why(token))]
        following = self._peek()
        if token.kind == "name" and following is not None and following.text == "(":
            if token.text in self._known:
                return [Node("use", f"{token.text}: {self._known[token.text]}", self._why(token))]
            if token.text in self.functions:
                return [Node("use", f"{token.text}: {commands(self.functions[token.text])}", self._why(token))]
        return []

    def _command(self) -> str:
        """Command and first argument of `redis.call(`, whose bracket is next; its arguments are walked later."""
        at = self._at + 1
        name = self._tokens[at]
        if name.kind != "string":
            after = next(token for token in self._tokens[at:] if token.text in (",", ")"))
            return _tidy(self._source[name.start : after.start])
        text = name.text.strip("'\"")
        if self._tokens[at + 1].text != ",":
            return text
        start = end = self._tokens[at + 2].start
        depth = 0
        for token in self._tokens[at + 2 :]:
            if depth == 0 and token.text in (",", ")"):
                break
            depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(token.text, 0)
            end = token.end
        return f"{text} {_tidy(self._source[start:end])}"

    def _why(self, token: Token) -> str:
        self._told.add(token.line)
        return " ".join(filter(None, [self._above.get(token.line, ""), self._trailing.get(token.line, "")]))

    def _line_from(self, token: Token) -> str:
        end = self._source.find("\n", token.end)
        text = self._source[token.end : end if end >= 0 else len(self._source)]
        return _tidy(re.sub(r"\s+(end|else)\b.*|--.*", "", text))


def commands(nodes: list[Node]) -> str:
    """The commands of a tree, each once, in order; empty for plain arithmetic."""
    found: list[str] = []
    for node in nodes:
        if node.kind == "call":
            found.append(node.text.split()[0])
        elif node.kind == "use":
            found += node.text.partition(": ")[2].split(", ")
        found += commands(node.children).split(", ") if node.children else []
    return ", ".join(dict.fromkeys(filter(None, found)))


def _said(token: Token) -> str:
    return token.text.removeprefix("--").strip()


def _tidy(text: str) -> str:
    return " ".join(re.sub(r"--[^\n]*", "", text).split())
