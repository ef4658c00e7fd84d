"""App: the one object most users hold; it declares tasks and topics, sends them, and makes workers."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from veredus.client.blocking import BlockingPortal
from veredus.client.calls import DEFAULT_MAX_PAYLOAD, Call
from veredus.client.handle import Handle
from veredus.client.pushing import Pushing
from veredus.client.steering import Steering
from veredus.client.surroundings import Stage, Surroundings
from veredus.client.task import P, R, T, Task, default_name
from veredus.clock import SYSTEM, Clock
from veredus.errors import ConfigError
from veredus.gateway.declare import Serving
from veredus.model.archive import ArchiveLimits
from veredus.model.grouping import GRACE, Aggregation, check_pattern, check_seconds, check_size
from veredus.model.job import Job
from veredus.model.limits import Limit, Limits, check_limits
from veredus.model.names import check_name
from veredus.model.options import OptionArgs, Options, check_unserved, seconds
from veredus.model.request import ActionRule
from veredus.model.retry import RetryDelay, as_function
from veredus.scheduler.declare import Scheduling
from veredus.scheduler.entries import Book

if TYPE_CHECKING:
    from veredus.client.client import Client, SendMiddleware
    from veredus.client.connections import Connections
    from veredus.client.semaphore import Semaphore
    from veredus.inspector.inspector import Inspector
    from veredus.store.redis import Redis
    from veredus.testing.rehearsal import Rehearsal
    from veredus.worker.worker import Worker

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
F = TypeVar("F", bound=Callable[..., Any])
Middleware = Callable[[Job, Callable[[Job], Awaitable[Any]]], Awaitable[Any]]

logger = logging.getLogger("veredus")


class App(Scheduling, Steering, Serving, Pushing, Surroundings):
    """Tasks, topics and how to reach Redis. Making one connects to nothing.

    Without `url` it uses VEREDUS_REDIS_URL, then REDIS_URL, else a real server embedded on this machine.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = "default",
        durability: str = "any",
        check_arguments: bool = True,
        strict: bool = False,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        result_ttl: float | timedelta = 600,
        patience: float = 5.0,
        timeout: float = 5.0,
        lifespan: Lifespan | None = None,
        archive_size: int | None = None,
        archive_days: int | None = None,
        unserved: str = "warn",
    ) -> None:
        """`unserved`: what happens to a task whose order key, limit or group nobody alive keeps, as on a queue that
        only Go serves: `warn`, `refuse` (raises QueueUnserved) or `ignore`."""
        super().__init__()
        self._url = url
        self.archive = ArchiveLimits.make(archive_size, archive_days)
        self._check_arguments = check_arguments
        self._strict = strict
        self._defaults = Options().merged({"queue": queue, "durability": durability})
        if not isinstance(max_payload, int) or max_payload < 1:
            raise ConfigError("max_payload", max_payload, "a number of bytes of at least 1")
        if not seconds("timeout", timeout):
            raise ConfigError("timeout", timeout, "seconds above 0")
        self.max_payload = max_payload
        self.result_ttl = math.ceil(seconds("result_ttl", result_ttl))
        self.lifespan = lifespan
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.patterns: dict[str, Task[..., Any, Any]] = {}
        self.middlewares: list[Middleware] = []
        self.send_middlewares: list[SendMiddleware] = []
        self.schedules = Book()
        self.actions: dict[str, ActionRule] = {}
        """What clients may call, by name."""
        self.gateway_settings: dict[str, Any] = {}
        self.aggregations: list[Aggregation] = []
        self.limits: dict[str, tuple[Limit, ...]] = {}
        """Of queues; those of tasks are theirs."""
        self._unserved = check_unserved(unserved)
        self._patience = seconds("patience", patience)
        self._timeout = seconds("timeout", timeout)
        self._portal = BlockingPortal()
        self._connections: Connections | None = None
        self._stage: Stage | None = None
        """While it is being tested: the server and the clock that stand in for the real ones."""
        if url is not None:
            self._check_url(url)

    # Declaring.

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        run_in: str | None = None,
        retry_delay: RetryDelay | None = None,
        retry_front: bool | None = None,
        limit: Limits = None,
        payload: str = "json",
        check_arguments: bool | None = None,
        strict: bool | None = None,
        **options: Unpack[OptionArgs],
    ) -> TaskDecorator: ...
    def task(self, function: Any = None, /, **settings: Any) -> Any:  # type: ignore[misc]
        """Declare a task: `@app.task` or `@app.task(queue="mail", max_retry=5, timeout=30)`.

        `name` is its type on the wire (default `module.function`), `run_in` one of loop, thread, process,
        `payload="raw"` gives the handler the bytes; `check_arguments=False` sends arguments of any type, to be refused
        on arrival if they do not fit; `strict=True` refuses on arrival what Go would ignore: unknown fields, null for
        an empty value, 3.0 for an int. All else are enqueue options.
        """
        if function is None:
            return TaskDecorator(self, settings)
        return TaskDecorator(self, settings)(function)

    def topic(self, name: str, **settings: Any) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare the consumer of a topic: a queue with one task type of the same name, whose payload is any JSON value
        that fits the handler's one parameter."""
        from veredus.wire.payload import value_codec_for

        strict = settings.get("strict")

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            settings.setdefault("queue", name)
            codec = value_codec_for(function, strict=self._is_strict(strict))
            return self._declare(function, name=name, codec=codec, **settings)

        return declare

    def handler(self, pattern: str, **settings: Any) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare a handler for every type that fits: `email:send` exactly, or `email:*` for a prefix. A parameter of
        type `Job` gets the task as it arrived. Exact names win over patterns, longer patterns over shorter ones."""
        if not pattern.strip() or "*" in pattern[:-1]:
            raise ConfigError("pattern", pattern, "a task type, or a prefix that ends in *")

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            if not pattern.endswith("*"):
                return self._declare(function, name=pattern, **settings)
            return self._declare(function, name=pattern, registry=self.patterns, **settings)

        return declare

    def aggregate(
        self,
        pattern: str,
        *,
        queue: str | None = None,
        grace: float | timedelta = GRACE,
        max_delay: float | timedelta | None = None,
        max_size: int | None = None,
        strict: bool | None = None,
    ) -> Callable[[F], F]:
        """Declare what becomes of a group: `def digest(group: str, jobs: list[Job])` returns a `task.call(...)`.

        It is called with the members of a group once nobody has joined it for `grace` seconds, once its oldest member
        has waited `max_delay` seconds, or once it has `max_size` members. `pattern` is a group's name, or a prefix that
        ends in *; without `queue` it is for every queue that the worker serves.
        """
        from veredus.wire.members import member_decoder_for

        settings: dict[str, Any] = {
            "pattern": check_pattern(pattern),
            "queue": None if queue is None else Options().merged({"queue": queue}).queue,
            "grace": check_seconds("grace", grace),
            "max_delay": None if max_delay is None else check_seconds("max_delay", max_delay),
            "max_size": None if max_size is None else check_size(max_size),
        }
        if any((one.pattern, one.queue) == (pattern, queue) for one in self.aggregations):
            raise ConfigError("pattern", pattern, "a pattern that no other aggregator of this app has for this queue")

        def declare(function: F) -> F:
            decode = member_decoder_for(function, strict=self._is_strict(strict))
            self.aggregations.append(Aggregation(**settings, function=function, decode=decode))
            return function

        return declare

    def limit(self, queue: str, limit: Limits) -> None:
        """Limit a whole queue, over all workers: `app.limit("mail", Limit(rate="100/s"))`. None takes an earlier limit
        away, also one that another program declared."""
        self.limits[Options().merged({"queue": queue}).queue] = check_limits("limit", limit)

    def semaphore(self, scope: str, most: int) -> Semaphore:
        """Asynq's own semaphore, shared with Go: inside a handler, `if not await semaphore.acquire(): raise ...`."""
        from veredus.client.semaphore import Semaphore
        from veredus.worker.context import current

        return Semaphore(scope, most, lambda: self._client().store.redis, current)

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every handler: `async def log(job, call_next): return await call_next(job)`. The first declared is the
        outermost; unknown types pass through it as well."""
        self.middlewares.append(function)
        return function

    def send_middleware(self, function: SendMiddleware) -> SendMiddleware:
        """Wrap everything that this app sends: `async def tag(calls, send): return await send(calls)`. `calls` is an
        iterable of one or many; what comes back is a list of their handles. The first declared is the outermost."""
        self.send_middlewares.append(function)
        return function

    def _declare(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        codec: Any = None,
        run_in: str | None = None,
        retry_delay: RetryDelay | None = None,
        retry_front: bool | None = None,
        limit: Limits = None,
        payload: str = "json",
        check_arguments: bool | None = None,
        strict: bool | None = None,
        registry: dict[str, Task[..., Any, Any]] | None = None,
        **options: Any,
    ) -> Task[P, R, Any]:
        from veredus.wire.payload import codec_for

        if isinstance(function, Task):
            raise ConfigError("task", function, "a plain function: this one is a task already")
        registry = self.tasks if registry is None else registry
        name = default_name(function) if name is None else name
        check_name("name", name)
        if name in registry:
            raise ConfigError("name", name, "a name that no other task of this app has")
        task: Task[P, R, Any] = Task(
            self,
            function,
            name=name,
            codec=codec or codec_for(function, payload, strict=self._is_strict(strict)),
            options=self._defaults.merged(options),
            run_in=run_in,
            retry_delay=None if retry_delay is None else as_function(retry_delay),
            retry_front=retry_front,
            limits=check_limits("limit", limit),
            check_arguments=self._check_arguments if check_arguments is None else check_arguments,
        )
        registry[name] = task
        return task

    def _is_strict(self, given: bool | None) -> bool:
        return self._strict if given is None else given

    # Sending.

    def call(self, task_type: str, payload: Any = None, **options: Unpack[OptionArgs]) -> Call[Any]:
        """An unsent call of any type, for `enqueue_many` and `schedule`; the payload is that of `enqueue`."""
        return self._raw_call(task_type, payload, options)

    async def enqueue(self, task_type: str, payload: Any = None, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """Send a task of any type, also one that only a Go service defines. Bytes travel as they are, None as no
        payload at all, anything else as JSON."""
        return await self.send(self._raw_call(task_type, payload, options))

    def enqueue_sync(self, task_type: str, payload: Any = None, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """`enqueue` for synchronous code."""
        return self.send_sync(self._raw_call(task_type, payload, options))

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Send many: `await app.enqueue_many(welcome.call(i) for i in range(10_000))`."""
        return await self._client().enqueue_many(calls)

    def enqueue_many_sync(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """`enqueue_many` for synchronous code."""
        return self._portal.run(self.enqueue_many(calls))

    async def produce(self, topic: str, payload: Any, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """Send a message to a topic: any JSON value, now or with `delay=` or `at=`; the topic needs no declaration."""
        return await self.send(self._topic_call(topic, payload, options))

    def produce_sync(self, topic: str, payload: Any, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """`produce` for synchronous code."""
        return self.send_sync(self._topic_call(topic, payload, options))

    async def send(self, call: Call[Any]) -> Handle[Any]:
        """Send what `task.call(...)` made."""
        return await self._client().enqueue(call)

    def send_sync(self, call: Call[Any]) -> Handle[Any]:
        """`send` for synchronous code."""
        return self._portal.run(self.send(call))

    def blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine for synchronous code, on the loop that the `_sync` methods use."""
        return self._portal.run(coroutine)

    def _raw_call(self, task_type: str, payload: Any, options: Mapping[str, Any]) -> Call[Any]:
        from veredus.wire.payload import encode_value

        known = self.tasks.get(task_type)
        defaults = known.options if known is not None else self._defaults
        if isinstance(payload, bytes | bytearray):
            return Call(task_type, bytes(payload), defaults.merged(options))
        encoded = b"" if payload is None else encode_value(payload)
        if known is not None:
            known.check_payload(encoded, {} if payload is None else payload)
        return Call(task_type, None if payload is None else encoded, defaults.merged(options))

    def _topic_call(self, topic: str, payload: Any, options: Mapping[str, Any]) -> Call[Any]:
        from veredus.wire.payload import encode_value

        known = self.tasks.get(topic)
        defaults = known.options if known is not None else self._defaults.merged({"queue": topic})
        encoded = encode_value(payload)
        if known is not None:
            known.check_payload(encoded, payload)
        return Call(topic, encoded, defaults.merged(options))

    # Connections.

    async def __aenter__(self) -> Self:
        await self._client().store.ping()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that this event loop opened; they open again on use."""
        if self._connections is not None:
            await self._connections.close()

    def close_sync(self) -> None:
        """Close what the `_sync` methods opened, with their event loop and its thread; they open again on use."""
        if self._portal.is_running:
            self._portal.run(self.close())
            self._portal.close()

    def _client(self) -> Client:
        return self._all_connections().client()

    def _all_connections(self) -> Connections:
        if self._connections is None:
            from veredus.client.connections import Connections
            from veredus.client.desk import Desk

            self._connections = Connections(
                self.open_redis,
                max_payload=self.max_payload,
                patience=self._patience,
                archive=self.archive,
                clock=self.clock,
                middlewares=self.send_middlewares,
                confirms=self._stage is None,
                unserved=self._unserved if self._stage is None else "ignore",
                is_limited=self._is_limited,
            )
            self._connections.desk = Desk(self._connections.client, self._portal, self._function_of, self.clock)
            if self.url is not None and self._stage is None:
                from veredus.store.address import parse_url

                _say_server(parse_url(self.url).describe())
        return self._connections

    def _is_limited(self, task_type: str, queue: str) -> bool:
        known = self.tasks.get(task_type)
        return bool(self.limits.get(queue) or (known is not None and known.limits))

    def open_redis(self, name: str = "veredus") -> Redis:
        """A Redis that connects at the first call: the given URL, the environment's, or the embedded server."""
        from veredus.store.store import connect

        if self._stage is not None:
            return self._stage.open_redis(name)
        url = self.url
        if url is not None:
            return connect(url, timeout=self._timeout, name=name)
        return _embedded_redis(self._timeout, name)

    @property
    def url(self) -> str | None:  # type: ignore[override]
        """Where Redis is; None means the embedded server."""
        return self._url or os.environ.get("VEREDUS_REDIS_URL") or os.environ.get("REDIS_URL") or None

    def use(self, url: str) -> None:
        """Point this app at another server, before it is used: what `--redis URL` does."""
        self._check_url(url)
        self._url = url

    @property
    def clock(self) -> Clock:
        """What tells the time: the system's, or a test's own."""
        return SYSTEM if self._stage is None else self._stage.clock

    def _enter_stage(self, described: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        from veredus.testing.away import AwayStage

        if not isinstance(self._stage, AwayStage):
            self._stage = AwayStage(tell)
            self.send_middlewares.append(self._stage.record)
        self._stage.be_at(described)

    def _check_url(self, url: str) -> None:
        from veredus.store.address import parse_url

        parse_url(url)

    # Looking.

    def inspector(self) -> Inspector:
        """Look into the queues and change what waits there: `await app.inspector().queue("mail")`. Call it where an
        event loop runs; its connection is the app's."""
        from veredus.inspector.inspector import Inspector

        return Inspector(self._client().store.redis, archive=self.archive)

    # Testing.

    def test(self, **settings: Any) -> Rehearsal:
        """Run tasks inline, by a clock of the test's own, on a server of its own: `async with app.test() as q:`."""
        from veredus.testing.rehearsal import Rehearsal

        return Rehearsal(self, **settings)

    # Working.

    def worker(self, queues: Mapping[str, int] | Sequence[str] | str | None = None, **settings: Any) -> Worker:
        """A worker for this app: `app.worker(queues={"critical": 6, "default": 1}, concurrency=50).run()`."""
        from veredus.worker.config import WorkerConfig
        from veredus.worker.worker import Worker

        return Worker(self, WorkerConfig.make(queues=queues, **settings))

    def served_queues(self) -> dict[str, int]:
        """Every queue that the tasks and topics of this app name, in the order they were declared."""
        named = [task.options.queue for task in [*self.tasks.values(), *self.patterns.values()]]
        named += [one.queue for one in self.aggregations if one.queue is not None]
        return dict.fromkeys(named or [self._defaults.queue], 1)


def _embedded_redis(timeout: float, name: str) -> Redis:
    """The embedded server, started on demand: also again, when it was stopped between two connections."""
    from veredus import embedded
    from veredus.store.address import Address
    from veredus.store.redis import Server

    async def resolve() -> str:
        server = await asyncio.to_thread(embedded.ensure)
        _say_embedded(server.describe())
        return server.socket

    return Server(Address(kind="unix", path="(embedded)"), resolve, timeout, name)


@functools.cache
def _say_server(description: str) -> None:
    logger.info("using the server at %s", description)


@functools.cache
def _say_embedded(description: str) -> None:
    """Loud on purpose: a forgotten variable in production must not start a private queue silently."""
    logger.warning("neither VEREDUS_REDIS_URL nor REDIS_URL is set: using the %s", description)


class TaskDecorator:
    """`@app.task(...)`: keeps the function's signature for type checkers, async or not."""

    def __init__(self, app: App, settings: Mapping[str, Any]) -> None:
        self._app = app
        self._settings = settings

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        return self._app._declare(function, **self._settings)
