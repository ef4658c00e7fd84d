"""Ordered sending under the names that older gateways used: one sender, and a manager of bound messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from veredus.client.notifier import Notifier
from veredus.model.delivery import NotifyItem, PushResult, SyncHint
from veredus.store.sessions.outbox import Outbox, Responded


class OrderedMessageSender:
    """Every message is numbered and stored in one step, also when several send at the same time."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    async def send_ordered_message(self, session: str, push: NotifyItem) -> PushResult:
        """Number a message and append it to the session's log. `seq` is its server sequence number."""
        return await self._notifier.push_item(session, replace(push, sync_hint=SyncHint.IMMEDIATE))


class MessageOrderingManager:
    """Messages bound to the responses of one session. The state is in Redis, so any process may bind and any may
    respond. `client_seq_id` is the number of the client's request."""

    def __init__(self, session: str, outbox: Outbox, notifier: Notifier) -> None:
        self._session = session
        self._outbox = outbox
        self._notifier = notifier

    async def add_notify_bind_before_rsp(self, client_seq_id: int, item: NotifyItem) -> PushResult:
        """Hold a notify until the response to this request; it arrives right before the response."""
        return await self._bind(client_seq_id, item, SyncHint.BEFORE_RESPONSE)

    async def add_notify_bind_after_rsp(self, client_seq_id: int, item: NotifyItem) -> PushResult:
        """Hold a notify until the response to this request; it arrives right after the response."""
        return await self._bind(client_seq_id, item, SyncHint.AFTER_RESPONSE)

    async def get_notify_counts(self, client_seq_id: int) -> tuple[int, int]:
        """The number of messages held for this request: before its response, after it."""
        return await self._outbox.held(self._session, client_seq_id)

    async def proc_with_notify_binds(
        self,
        client_seq_id: int,
        response_tail: bytes,
        before: Sequence[NotifyItem] = (),
        after: Sequence[NotifyItem] = (),
        *,
        failed: bool = False,
    ) -> Responded:
        """Get and remove what is bound, and append befores, response and afters as one consecutive run."""
        return await self._outbox.respond(
            self._session,
            client_seq_id,
            response_tail,
            [self._tail(client_seq_id, item, SyncHint.BEFORE_RESPONSE) for item in before],
            [self._tail(client_seq_id, item, SyncHint.AFTER_RESPONSE) for item in after],
            failed=failed,
        )

    async def _bind(self, client_seq_id: int, item: NotifyItem, hint: SyncHint) -> PushResult:
        bound = replace(item, sync_hint=hint, bind_client_seq_id=client_seq_id)
        return await self._notifier.push_item(self._session, bound)

    def _tail(self, client_seq_id: int, item: NotifyItem, hint: SyncHint) -> bytes:
        return self._notifier.item_tail(replace(item, sync_hint=hint, bind_client_seq_id=client_seq_id))
