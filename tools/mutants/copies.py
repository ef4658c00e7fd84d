"""Copies of the working tree to break: with an environment of their own, in which the copy is what gets imported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path


class CannotCopy(Exception):
    """The copy could not be made, or its code would not be what runs in it; the text says why."""


class Copy:
    """The tracked files as they stand, and the untracked ones that are not ignored. The checkout is only read."""

    def __init__(self, root: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="veredus-mutants-")).resolve()
        self.python = self.root / ".venv/bin/python"
        self._stamps = 0
        try:
            _copy_tree(root, self.root)
            self._make_environment()
            self._check_imports()
        except BaseException:
            self.remove()
            raise

    def write(self, file: str, text: str) -> None:
        """Each version gets a time of its own: Python must not take what it compiled of another one for it."""
        path = self.root / file
        path.write_text(text, encoding="utf-8")
        self._stamps += 2
        os.utime(path, (path.stat().st_atime, 1_000_000_000 + self._stamps))

    def read(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")

    def end_strays(self) -> None:
        """End what a broken run has left behind: processes that were started with this copy's Python."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.root).encode() in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:
                pass  # it has ended, or is somebody else's

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _make_environment(self) -> None:
        """A virtual environment that has the packages of the one that runs, but the copy's `src` before them.

        A variable PYTHONPATH would not do: tests start processes with environments of their own making.
        """
        programs = self.python.parent
        programs.mkdir(parents=True)
        settings = Path(sys.prefix, "pyvenv.cfg")
        if not settings.is_file():
            raise CannotCopy(f"{sys.executable} is not the Python of a virtual environment: use that of .venv")
        shutil.copy(settings, self.root / ".venv")
        for name in ("python", "python3", Path(sys.executable).name):
            if not (programs / name).is_symlink():
                (programs / name).symlink_to(os.path.realpath(sys.executable))
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(self.root / ".venv")}))
        packages.mkdir(parents=True)
        lines = [str(self.root / "src")]
        for folder in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
            lines.append(f"import site; site.addsitedir({folder!r})")
        (packages / "copy.pth").write_text("\n".join(lines) + "\n")
        for path in Path(sys.executable).parent.iterdir():
            if not (programs / path.name).exists() and path.is_file() and path.stat().st_size < 10_000:
                content = path.read_bytes()
                if content.startswith(b"#!") and b"python" in content.partition(b"\n")[0]:
                    (programs / path.name).write_bytes(b"#!%s\n" % bytes(self.python) + content.partition(b"\n")[2])
                    (programs / path.name).chmod(0o755)

    def _check_imports(self) -> None:
        """Ask a child without any environment, as the least that a test may start, where the code comes from."""
        for package in sorted(path.parent.name for path in (self.root / "src").glob("*/__init__.py")):
            asked = [str(self.python), "-c", f"import {package}; print({package}.__file__)"]
            done = subprocess.run(asked, cwd="/", env={}, capture_output=True, text=True, timeout=60)
            found = done.stdout.strip()
            if done.returncode or not Path(found).resolve().is_relative_to(self.root):
                where = found or done.stderr.strip()[-500:]
                raise CannotCopy(f"{package} would be imported from elsewhere than the copy in {self.root}: {where}")


def _copy_tree(root: Path, target: Path) -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise CannotCopy(f"git cannot list the files of {root}: {done.stderr.strip()}")
    for name in dict.fromkeys(filter(None, done.stdout.split("\0"))):
        path = root / name
        if path.is_symlink() or path.is_file():  # neither deleted nor a submodule
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name, follow_symlinks=False)
