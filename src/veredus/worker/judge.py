"""Decides what follows an attempt: asks the app's hooks and Redis, then applies the rules of `model/verdict`."""

from __future__ import annotations

import asyncio

from veredus.errors import ChildFailed, StoreError
from veredus.handlers.executors.processes import ProcessDied, ProcessNotReady
from veredus.handlers.failure_log import log_ending, log_hook_failure
from veredus.handlers.mux import HandlerNotFound
from veredus.handlers.request_answers import RequestAnswers
from veredus.model.request import SESSION
from veredus.model.verdict import CANCELLATIONS, End, Outcome, Verdict, asked_retry, judge, wraps
from veredus.store.tasks.work import Work
from veredus.wire.messages import is_kept_for_waiters
from veredus.worker.attempt import Attempt
from veredus.worker.config import WorkerConfig

_BY_RULE = (End.FAILED, End.TIMED_OUT)
"""Ends that a task's `retry_on` and `no_retry_on` are about."""
HOOK_TIMEOUT = 10.0
"""Seconds for an async on_error. The task's new state is written only after it returns."""


class Judge:
    """Calls `on_error` and `is_failure`. A hook that raises is logged and never changes how the attempt ends."""

    def __init__(self, config: WorkerConfig, work: Work, requests: RequestAnswers, result_ttl: int) -> None:
        self._config = config
        self._work = work
        self._requests = requests
        self._result_ttl = result_ttl

    def succeeded(self, attempt: Attempt, outcome: Outcome) -> Verdict:
        """The verdict on an attempt without an error. No hook is called. Waiters are notified, so that nothing has to
        be kept for them."""
        if is_kept_for_waiters(attempt.data):
            attempt.message.retention = 0
        return judge(attempt.message, outcome, result_ttl=self._result_ttl, is_failure=False)

    async def failed(self, attempt: Attempt, outcome: Outcome) -> Verdict:
        """The verdict on an attempt that ended with an error."""
        error, message = outcome.error, attempt.message
        # The client of an overdue request already has its answer, and a request whose body does not fit never will fit:
        # another attempt is useless for both.
        is_request = SESSION in message.headers
        is_last = is_request and (outcome.end is End.UNREADABLE or self._requests.overdue(message.headers))
        asked, rule = asked_retry(outcome), attempt.context.retry_rule
        if rule is not None and error is not None and asked is None and outcome.end in _BY_RULE:
            is_raised = outcome.end is End.FAILED and not isinstance(error, ProcessDied | HandlerNotFound)
            is_last = is_last or rule.is_final(error, raised=is_raised)
        is_failure = True
        if error is not None and outcome.end not in (End.ABORTED, End.LEASE_LOST):
            if outcome.end is not End.CANCELLED or outcome.then not in CANCELLATIONS:
                await self._call_on_error(error, attempt)
            is_failure = self._is_failure(error) if asked is None else asked.counts
        if isinstance(error, ProcessDied) and not isinstance(error, ProcessNotReady):
            outcome.crashes = await self._crashes(attempt)
        verdict = judge(
            message,
            outcome,
            result_ttl=self._result_ttl,
            is_failure=is_failure,
            is_last=is_last
            or wraps(error, ChildFailed)
            or (not is_failure and await self._is_deferred_out(attempt))
            or (outcome.end is End.TIMED_OUT and await self._is_run_over(attempt)),
            max_crashes=self._config.max_crashes,
        )
        log_ending(message, message.retried + 1, outcome, verdict, quiet=self._config.on_error is not None)
        return verdict

    async def _crashes(self, attempt: Attempt) -> int:
        """How often the task has killed its process, including this time; 1 if Redis does not answer."""
        try:
            return 1 + await self._work.losses(attempt.queue, attempt.task_id)
        except (StoreError, ValueError):
            return 1

    async def _is_deferred_out(self, attempt: Attempt) -> bool:
        """Whether the task has used up its deferrals. If Redis does not answer, it gets one more."""
        if not self._config.max_deferrals:
            return False
        try:
            return await self._work.deferrals(attempt.queue, attempt.task_id) >= self._config.max_deferrals
        except (StoreError, ValueError):
            return False

    async def _is_run_over(self, attempt: Attempt) -> bool:
        """Whether the deadline of a durable task has passed: it is about the whole run, so further attempts are
        useless. If Redis does not answer, they find the same."""
        if not attempt.message.deadline or attempt.deadline < attempt.message.deadline:
            return False
        try:
            return await self._work.is_durable(attempt.queue, attempt.task_id)
        except StoreError:
            return False

    async def _call_on_error(self, error: BaseException, attempt: Attempt) -> None:
        if self._config.on_error is None:
            return
        try:
            returned = self._config.on_error(error, attempt.context.job)
            if returned is not None:
                async with asyncio.timeout(HOOK_TIMEOUT):
                    await returned
        except BaseException as exc:  # a hook may raise anything
            log_hook_failure("on_error", exc)

    def _is_failure(self, error: BaseException) -> bool:
        if self._config.is_failure is None:
            return True
        try:
            return bool(self._config.is_failure(error))
        except BaseException as exc:  # a hook may raise anything
            log_hook_failure("is_failure", exc, "; the error counts as a failure")
            return True
