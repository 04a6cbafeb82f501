"""Sources whose messages no receiver gets: scheduled ones, and deferred ones. They are found by peeks, in order.

Invariant: a source gives each of its messages once. A released one stays as it is, for the next run.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from sbpair.amqp.link import Delivery, ReceivingLink
from sbpair.amqp.performatives import Accepted, Outcome
from sbpair.amqp_client.client import AmqpClient, SessionReceiver
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED, RawReceiver
from sbpair.errors import MessageLockLost, SbpairError, ServiceRefused, SessionLocked, SessionLockLost
from sbpair.move.interface import Failures, KeptMessage, ReceivedMessage
from sbpair.move.message.envelope import DEFERRED, SCHEDULE, SCHEDULED, message_state
from sbpair.move.message.route import TimeToLive
from sbpair.move.peek.locked import NewMessages
from sbpair.move.peek.peeker import PeekedMessage, read_peeked
from sbpair.move.raw_source import RawReceivedMessage, RawSource

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.filter import MessageFilter
    from sbpair.move.message.route import MessageForm

PAGE: Final = 100
NOT_DUE: Final = 1e9
"""Seconds for which a message that is not locked stays as it is, as far as a run is concerned."""

Peeked = tuple[PeekedMessage, bytes]


class AsideSource(RawSource):
    """Messages in the state of `state`, page by page. `left` are the numbers of those that others have locked."""

    state: int

    def __init__(self, wire: AmqpClient, queue: str, form: MessageForm, context: MoveContext) -> None:
        super().__init__(wire, cast("RawReceiver", None), queue, form=form)
        self._form, self._context = form, context
        self.left: set[int] = set()
        self._again: set[int] = set()
        self._start = 0
        self._peeked = deque[Peeked]()
        self._new = NewMessages(context.until_ms)
        self._new.note_start(self._now_ms())

    def _now_ms(self) -> int:
        return self.service_ms or self._context.now_ms()

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:  # noqa: ARG002  # no wait
        """Return the next messages; [] after the last one. Raises Unavailable."""
        while self._peeked or await self._peek_page():
            page = [self._peeked.popleft() for _ in range(min(limit, len(self._peeked)))]
            if page and (messages := await self._take_over(page)):
                return messages
        return []

    receive_for_filter = receive

    async def _peek_page(self) -> bool:
        """Peek on. Return whether messages may follow."""
        self._context.tally.spent("management_calls", 1)
        payloads = await self._wire.peek(self.queue, self._start, PAGE)
        page = [read_peeked(self.queue, payload, self._form) for payload in payloads]
        for each in zip(page, payloads, strict=True):
            facts, sections = each[0]
            number, is_new = facts.sequence_number, self._new.include(facts.enqueued_at)
            if message_state(sections) == self.state and (number in self._again if self._again else not is_new):
                self._peeked.append(each)
        highest = max((each.facts.sequence_number for each in page), default=-1)
        if highest < self._start:
            return False  # the end, or an unreadable message that hides those after it
        self._start = highest + 1
        return True

    def try_again(self) -> None:
        """Let the next receives look for the messages that others had locked."""
        self._again, self.left, self._start = self.left, set(), min(self.left)

    async def _take_over(self, page: Sequence[Peeked]) -> list[RawReceivedMessage]:
        raise NotImplementedError

    def _decoded(self, payloads: list[bytes], tags: Sequence[bytes], ends: Sequence[float]) -> list[RawReceivedMessage]:
        no_link = cast("ReceivingLink", None)
        return self._made([Delivery(no_link, 0, tag, 0, settled=False) for tag in tags], payloads, ends)

    # The link of a RawSource, which this source has not.

    @property
    def error(self) -> SbpairError | None:
        return self._wire.error

    @property
    def lost(self) -> Sequence[Delivery]:
        return ()

    def grant(self, limit: int) -> None: ...

    async def reopen(self) -> bool:
        return False

    def interrupt(self) -> None: ...

    async def stop(self) -> None: ...

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self.settle_by_token(messages, ACCEPTED)

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self.settle_by_token(messages, RELEASED)


class ScheduledSource(AsideSource):
    """Scheduled messages, which are cancelled when they are completed. None is locked: one that is due is lost."""

    state = SCHEDULED

    async def _take_over(self, page: Sequence[Peeked]) -> list[RawReceivedMessage]:
        at = [sections.read_message_annotations().get(SCHEDULE) for (_, sections), _ in page]
        due = [each if isinstance(each, int) else 0 for each in at]
        ends = [self._loop.time() + (each - self._now_ms()) / 1000 for each in due]
        messages = self._decoded([payload for _, payload in page], [b""] * len(page), ends)
        if self._context.ttl is TimeToLive.REMAINING:
            for message, due_ms in zip(messages, due, strict=True):
                message.facts = message.facts._replace(scheduled_at=due_ms)
        return messages

    async def renew(self, messages: Sequence[RawReceivedMessage | KeptMessage]) -> None:
        """Raise MessageLockLost if one is due: from then on it is delivered by its source."""
        if any(each.lock_until <= self._loop.time() for each in messages):
            raise MessageLockLost("the message is due", hint="move the active messages, too")

    async def settle_by_token(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> Failures:
        failed: Failures = []
        for start in range(0, len(messages) if isinstance(outcome, Accepted) else 0, PAGE):
            failed += await self._cancel(messages[start : start + PAGE])
        return failed

    async def release_kept(self, messages: Sequence[KeptMessage]) -> int:  # noqa: ARG002  # none is locked
        return 0

    async def _cancel(self, messages: Sequence[ReceivedMessage]) -> Failures:
        try:
            await self._wire.cancel_scheduled(self.queue, [each.facts.sequence_number for each in messages])
        except ServiceRefused as error:
            # One that became due, or was cancelled by another, refuses all: halves find it.
            half = len(messages) // 2
            if not half:
                return [(messages[0], error)]
            return await self._cancel(messages[:half]) + await self._cancel(messages[half:])
        except SbpairError as error:
            return [(each, error) for each in messages]
        return []


class DeferredSource(AsideSource):
    """Deferred messages. Those for which `where` is true are locked by their numbers.

    With `sessions`, that needs the lock of their session.
    """

    state = DEFERRED

    def __init__(
        self,
        wire: AmqpClient,
        queue: str,
        form: MessageForm,
        context: MoveContext,
        *,
        where: MessageFilter | None,
        sessions: bool,
    ) -> None:
        super().__init__(wire, queue, form, context)
        # What stays is not locked: that would raise its delivery count. The mover counts by the filter itself.
        self._where = None if where is None else replace(where)
        self._has_sessions = sessions
        self._sessions: dict[str, SessionReceiver] = {}
        self._session_of: dict[bytes, str] = {}

    async def _take_over(self, page: Sequence[Peeked]) -> list[RawReceivedMessage]:
        chosen, others, now_ms = defaultdict[str | None, list[int]](list), [], self._now_ms()
        for (facts, sections), payload in page:
            if self._where is None or self._where.matches_peeked(facts, sections, now_ms):
                session_id = sections.read_properties().group_id if self._has_sessions else None
                chosen[session_id].append(facts.sequence_number)
            else:
                others.append(payload)
        messages = self._decoded(others, [b""] * len(others), [self._loop.time() + NOT_DUE] * len(others))
        for session_id, numbers in chosen.items():
            messages += await self._lock(session_id, numbers)
        return messages

    async def _lock(self, session_id: str | None, numbers: list[int]) -> list[RawReceivedMessage]:
        try:
            session = None if session_id is None else await self._session(session_id, numbers)
            found = await self._wire.receive_deferred(self.queue, numbers, session)
        except SessionLocked:
            self.left.update(numbers)
            return []
        except ServiceRefused:
            # One that another has locked or taken refuses all: halves find it.
            half = len(numbers) // 2
            if half:
                return await self._lock(session_id, numbers[:half]) + await self._lock(session_id, numbers[half:])
            self.left.update(numbers)
            return []
        self._clock.sample()
        tags = [token.bytes_le for token, _ in found]
        if session_id is not None:
            self._session_of |= dict.fromkeys(tags, session_id)
        return self._decoded([payload for _, payload in found], tags, ())

    async def _session(self, session_id: str, numbers: Sequence[int]) -> SessionReceiver:
        """Return the session, locked. Note which of the numbers its state has."""
        if session_id not in self._sessions:
            self._sessions[session_id] = await self._wire.session(self.queue, session_id)
            state = await self._wire.session_state(self.queue, session_id)
            found = {int(each) for each in re.findall(r"\d{1,19}", (state or b"").decode(errors="replace"))}
            self._context.tally.mentioned(session_id, found.intersection(numbers))
        return self._sessions[session_id]

    async def renew(self, messages: Sequence[RawReceivedMessage | KeptMessage]) -> None:
        by_session = defaultdict[str | None, list[RawReceivedMessage | KeptMessage]](list)
        for each in messages:
            if tag := each.delivery.tag:
                by_session[self._session_of.get(tag)].append(each)
        for session_id, locked in by_session.items():
            if session_id is None:
                await super().renew(locked)
                continue
            try:
                until_ms = await self._wire.renew_session(self._sessions[session_id])
            except SessionLockLost as error:
                raise MessageLockLost(error.message, hint=error.hint) from error
            for each in locked:
                each.lock_until = self._clock.local_time(until_ms)

    async def release_kept(self, messages: Sequence[KeptMessage]) -> int:
        return len(await self._settle_tags([each.delivery.tag for each in messages if each.delivery.tag], RELEASED))

    async def _settle_some(self, tags: Sequence[bytes], outcome: Outcome) -> dict[bytes, SbpairError]:
        by_session = defaultdict[str | None, list[bytes]](list)
        for tag in tags:
            by_session[self._session_of.get(tag)].append(tag)
        failed: dict[bytes, SbpairError] = {}
        for session_id, its in by_session.items():
            failed |= await super()._settle_some(its, outcome)
            for tag in its:
                self._session_of.pop(tag, None)
            if session_id not in {None, *self._session_of.values()} and session_id in self._sessions:
                self._sessions.pop(session_id).close()
        return failed

    def _session_for(self, tags: Sequence[bytes]) -> SessionReceiver | None:
        return self._sessions.get(self._session_of.get(tags[0], ""))
