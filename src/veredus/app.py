"""App: the object that most users hold. It declares tasks and topics, sends them, and makes workers."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from veredus.app_server import AppServer, Fact
from veredus.client.call import DEFAULT_MAX_PAYLOAD, Call
from veredus.client.declaring import (
    Defaults,
    TaskDeclarations,
    TaskSettings,
    Then,
    check_defaults,
    declaration_of,
    place_of,
)
from veredus.client.handle import Handle
from veredus.client.pushing import Pushing
from veredus.client.steering import Steering
from veredus.client.task import T, Task
from veredus.clock import Clock
from veredus.errors import ConfigError
from veredus.gateway.declare import GatewayDeclarations
from veredus.model.archive import ArchiveLimits
from veredus.model.checks import function, whole
from veredus.model.grouping import GRACE, Aggregation, check_pattern, check_seconds, check_size
from veredus.model.job import Job
from veredus.model.limits import Limit, Limits, check_limits
from veredus.model.options import OptionArgs, Options, check_unserved, seconds
from veredus.model.redaction import Redact
from veredus.model.request import ActionRule
from veredus.router import Including, Router
from veredus.scheduler.declare import ScheduleDeclarations
from veredus.scheduler.entries import Book
from veredus.wire.payload import encode_value

if TYPE_CHECKING:
    from veredus.client.client import Client, SendMiddleware
    from veredus.client.semaphore import Semaphore
    from veredus.client.task_batch import TaskBatch
    from veredus.inspector.inspector import Inspector
    from veredus.store.connection.redis import Redis
    from veredus.testing.rehearsal import Rehearsal, RehearsalSettings
    from veredus.worker.config import WorkerSettings
    from veredus.worker.worker import Worker

AnyTask = Task[..., Any, Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
F = TypeVar("F", bound=Callable[..., Any])
Middleware = Callable[[Job, Callable[[Job], Awaitable[Any]]], Awaitable[Any]]

logger = logging.getLogger("veredus")


class App(Including, TaskDeclarations, ScheduleDeclarations, Steering, GatewayDeclarations, Pushing):
    """Tasks, topics and the address of Redis. Creating an app does not connect.

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
        include: Sequence[str | Router] = (),
        defaults: TaskSettings | None = None,
        redact: Redact | None = None,
    ) -> None:
        """`unserved`: what happens to a task with an order key, a limit or a group that no live worker supports, as on
        a queue that only Go serves: `warn`, `refuse` (raises QueueUnserved) or `ignore`. `include`: modules and routers
        with tasks, see `include`. `defaults`: settings and options of all tasks that do not set them themselves, such
        as `{"max_retry": 5}`. A `timeout` in it is that of tasks; the argument `timeout` is that of Redis. `redact`
        decides what of payloads and errors is stored and shown."""
        super().__init__()
        self.archive = ArchiveLimits.make(archive_size, archive_days)
        given = check_defaults(cast("Mapping[str, Any]", defaults or {}))
        general = {"queue": queue, "durability": durability, "check_arguments": check_arguments, "strict": strict}
        self._declared_defaults = Defaults().with_(general).with_(given)
        self._defaults = self._declared_defaults.options
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
        self.queue_sources: list[Callable[[], dict[str, int]]] = []
        """Queues with weights that workers serve too: those of Django's tasks."""
        self.hooks: dict[str, Any] = {}
        """Settings of its workers: `on_error` and `is_failure`."""
        self.send_middlewares: list[SendMiddleware] = []
        self.schedules = Book()
        self.actions: dict[str, ActionRule] = {}
        """What clients may call, by name."""
        self.gateway_settings: dict[str, Any] = {}
        self.aggregations: list[Aggregation] = []
        self.limits: dict[str, tuple[Limit, ...]] = {}
        """The limits of queues. Tasks hold their own limits."""
        self.max_lengths: dict[str, int] = {}
        """Of queues: how many tasks may wait there."""
        self.redact = None if redact is None else function("redact", redact)
        self._state: Any = None
        self._is_in_child = False
        self.server = AppServer(
            self,
            url,
            timeout=seconds("timeout", timeout),
            patience=seconds("patience", patience),
            archive=self.archive,
            max_payload=max_payload,
            queue=self._defaults.queue,
            unserved=check_unserved(unserved),
        )
        self.include(*([include] if isinstance(include, str) else include))

    # Declaring.

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
            default = bool(self._declared_defaults.settings.get("strict"))
            decode = member_decoder_for(function, strict=default if strict is None else strict)
            self.aggregations.append(Aggregation(**settings, function=function, decode=decode))
            return function

        return declare

    def limit(self, queue: str, limit: Limits) -> None:
        """Limit a whole queue, over all workers: `app.limit("mail", Limit(rate="100/s"))`. None removes an earlier
        limit, even one that another program declared."""
        self.limits[Options().merged({"queue": queue}).queue] = check_limits("limit", limit)

    def max_length(self, queue: str, most: int | None) -> None:
        """Bound a queue: this app enqueues only while fewer than `most` tasks wait there (pending, scheduled or to be
        retried). `enqueue` then raises QueueFull, or waits for room as long as the option `wait_for_room` says. None
        takes an earlier bound away."""
        name = Options().merged({"queue": queue}).queue
        if most is None:
            self.max_lengths.pop(name, None)
        else:
            self.max_lengths[name] = whole("most", most, 1)

    def semaphore(self, scope: str, most: int) -> Semaphore:
        """Asynq's own semaphore, shared with Go. Use it inside a handler: `if not await semaphore.acquire(): raise
        ...`."""
        from veredus.client.semaphore import Semaphore
        from veredus.handlers.context import current

        return Semaphore(scope, most, lambda: self._client().store.redis, current)

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every handler: `async def log(job, call_next): return await call_next(job)`. The first one declared
        is the outermost. Unknown types pass through it as well."""
        self.middlewares.append(function)
        return function

    def send_middleware(self, function: SendMiddleware) -> SendMiddleware:
        """Wrap everything that this app sends: `async def tag(calls, send): return await send(calls)`. `calls` is an
        iterable of one or more calls; the result is a list of their handles. The first one declared is the
        outermost."""
        self.send_middlewares.append(function)
        return function

    def on_error(self, function: F) -> F:
        """Declare what is called with the error and the `Job` of each failed attempt, before the task's new state is
        written: `async def report(error, job): ...`. It is that of every worker of this app, unless `app.worker` is
        given another."""
        return self._hook("on_error", function)

    def is_failure(self, function: F) -> F:
        """Declare which errors are failures: `def is_failure(error): return not isinstance(error, Busy)`. A task is
        retried after the others without counting a retry or a failure."""
        return self._hook("is_failure", function)

    def _hook(self, name: str, function: F) -> F:
        if not callable(function):
            raise ConfigError(name, function, f"a function: write @app.{name}, without parentheses")
        if name in self.hooks:
            raise ConfigError(name, place_of(function), f"one function for the app; {place_of(self.hooks[name])} is it")
        self.hooks[name] = function
        return function

    def _declare(self, function: Callable[..., Any], *, then: Then | None = None, **settings: Any) -> AnyTask:
        return self._add(declaration_of(function, (), then=then, **settings))

    # Sending.

    def call(self, task_type: str, payload: Any = None, **options: Unpack[OptionArgs]) -> Call[Any]:
        """An unsent call of any type, for `enqueue_many` and `schedule`; the payload is that of `enqueue`."""
        return self._raw_call(task_type, payload, options)

    async def enqueue(self, task_type: str, payload: Any = None, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """Send a task of any type, even one that only a Go service defines. Bytes are sent unchanged, None means no
        payload, anything else is encoded as JSON."""
        return await self.send(self._raw_call(task_type, payload, options))

    def enqueue_sync(self, task_type: str, payload: Any = None, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """`enqueue` for synchronous code."""
        return self.send_sync(self._raw_call(task_type, payload, options))

    async def enqueue_many(self, calls: Iterable[Call[T]]) -> list[Handle[T]]:
        """Send many: `await app.enqueue_many(welcome.call(i) for i in range(10_000))`."""
        return await self._client().enqueue_many(calls)

    def enqueue_many_sync(self, calls: Iterable[Call[T]]) -> list[Handle[T]]:
        """`enqueue_many` for synchronous code."""
        return self.server.portal.run(self.enqueue_many(calls))

    def batch(
        self, calls: Iterable[Call[Any]], *, then: Call[T] | None = None, **options: Unpack[OptionArgs]
    ) -> TaskBatch[T]:
        """Many tasks, and one that runs when all of them have ended, however they ended: `await app.batch([...],
        then=report.call()).enqueue()`. The options are those of the task that waits, without a worker."""
        from veredus.client.task_batch import TaskBatch

        return TaskBatch(self, calls, then, self._defaults.merged(options))

    async def produce(self, topic: str, payload: Any, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """Send a message to a topic: any JSON value, now or with `delay=` or `at=`. The topic need not be declared."""
        return await self.send(self._topic_call(topic, payload, options))

    def produce_sync(self, topic: str, payload: Any, **options: Unpack[OptionArgs]) -> Handle[Any]:
        """`produce` for synchronous code."""
        return self.send_sync(self._topic_call(topic, payload, options))

    async def send(self, call: Call[T]) -> Handle[T]:
        """Send what `task.call(...)` made."""
        return await self._client().enqueue(call)

    def send_sync(self, call: Call[T]) -> Handle[T]:
        """`send` for synchronous code."""
        handle = self.server.send_here(call)
        return self.server.portal.run(self.send(call)) if handle is None else handle

    def blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine for synchronous code, on the loop that the `_sync` methods use."""
        return self.server.portal.run(coroutine)

    def _raw_call(self, task_type: str, payload: Any, options: Mapping[str, Any]) -> Call[Any]:
        self.load()
        known = self.tasks.get(task_type)
        defaults = known.options if known is not None else self._defaults
        if isinstance(payload, bytes | bytearray):
            merged = defaults.merged(options)
            return Call(task_type, bytes(payload), _resolved(merged, known, bytes(payload)))
        encoded = b"" if payload is None else encode_value(payload)
        if known is not None:
            known.check_payload(encoded, {} if payload is None else payload)
        merged = _resolved(defaults.merged(options), known, encoded)
        return Call(task_type, None if payload is None else encoded, merged)

    def _topic_call(self, topic: str, payload: Any, options: Mapping[str, Any]) -> Call[Any]:
        self.load()
        known = self.tasks.get(topic)
        defaults = known.options if known is not None else self._defaults.merged({"queue": topic})
        encoded = encode_value(payload)
        if known is not None:
            known.check_payload(encoded, payload)
        return Call(topic, encoded, _resolved(defaults.merged(options), known, encoded))

    # Connections.

    async def __aenter__(self) -> Self:
        await self._client().store.ping()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that this event loop opened. The next use opens them again."""
        await self.server.close()

    def close_sync(self) -> None:
        """Close what the `_sync` methods opened, including their event loop and thread. The next use opens them
        again."""
        self.server.close_sync()

    def _client(self) -> Client:
        return self.server.client()

    def is_limited(self, task_type: str, queue: str) -> bool:
        """Whether this app declares a limit for the type or the queue."""
        known = self.tasks.get(task_type)
        return bool(self.limits.get(queue) or (known is not None and known.limits))

    def open_redis(self, name: str = "veredus") -> Redis:
        """A Redis client that connects at its first call: to the given URL, the environment's, or the embedded
        server."""
        return self.server.open_redis(name)

    @property
    def url(self) -> str | None:
        """The address of Redis; None means the embedded server."""
        return self.server.url

    def use(self, url: str) -> None:
        """Use another server; call it before the app is used. This is what `--redis URL` does."""
        self.server.use(url)

    @property
    def clock(self) -> Clock:
        """The clock of this app: the system's, or a test's."""
        return self.server.clock

    # Handlers in processes.

    @property
    def state(self) -> Any:
        """What `lifespan` yields in a running worker."""
        if self._is_in_child and self.lifespan is not None:
            raise LookupError(
                'app.state is not available in a handler with run_in="process": what `lifespan` opened stays in the '
                "worker's process; open it in the handler, at the top of its module, or with Depends(...)"
            )
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value

    def surroundings(self) -> Fact:
        """What `move_to` needs in another process: the server in use, wherever its URL came from."""
        stage = self.server.stage
        return {"url": self.url, "stage": None if stage is None else stage.describe()}

    def move_to(self, place: Fact, tell: Callable[[Fact], None]) -> None:
        """Called in a handler's process: use what the worker uses. `tell` sends a fact to `heard` in the worker."""
        self._is_in_child = True
        if place["url"] is not None:
            self.server.use(place["url"])
        if place["stage"] is not None:
            from veredus.testing.child_stage import ChildStage

            if not isinstance(self.server.stage, ChildStage):
                stage = ChildStage(tell)
                self.server.enter(stage)
                self.send_middlewares.append(stage.record)
            cast(ChildStage, self.server.stage).be_at(place["stage"])

    def heard(self, fact: Fact) -> None:
        """A fact reported by the app in a handler's process."""
        if self.server.stage is not None:
            self.server.stage.heard(fact)

    # Looking.

    def inspector(self) -> Inspector:
        """Read the queues and change waiting tasks: `await app.inspector().queue("mail")`. Call it in a running
        event loop; it uses the app's connection."""
        from veredus.inspector.inspector import Inspector

        return Inspector(self._client().store.redis, archive=self.archive, redact=self.redact)

    # Testing.

    def test(self, **settings: Unpack[RehearsalSettings]) -> Rehearsal:
        """Run tasks inline, by the test's clock, on a separate server: `async with app.test() as q:`."""
        from veredus.testing.rehearsal import Rehearsal

        self.load()
        return Rehearsal(self, **cast("dict[str, Any]", settings))

    # Working.

    def worker(
        self, queues: Mapping[str, int] | Sequence[str] | str | None = None, **settings: Unpack[WorkerSettings]
    ) -> Worker:
        """A worker for this app: `app.worker(queues={"critical": 6, "default": 1}, concurrency=50).run()`."""
        from veredus.worker.config import WorkerConfig
        from veredus.worker.worker import Worker

        self.load()
        given = {name: value for name, value in settings.items() if value is not None}
        return Worker(self, WorkerConfig.make(queues=queues, **{**self.hooks, **given}))

    def served_queues(self) -> dict[str, int]:
        """The queues of its tasks and topics, in the order of declaration, then those of its sources."""
        self.load()
        named = [task.options.queue for task in [*self.tasks.values(), *self.patterns.values()]]
        named += [one.queue for one in self.aggregations if one.queue is not None]
        weight = 10 if self.queue_sources else 1  # as much as Django's middle band
        queues = dict.fromkeys(named or [self._defaults.queue], weight)
        for source in self.queue_sources:
            queues |= source()
        return queues


def _resolved(options: Options, known: AnyTask | None, payload: bytes) -> Options:
    """The options with their keys, which may depend on the payload; of a type that is not known here, on its fields."""
    if not options.has_rules:
        return options
    if known is not None:
        return known.options_for(options, payload)
    from veredus.wire.payload import fields_of

    return options.resolved(fields_of(payload))
