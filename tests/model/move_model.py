"""A model of the move: what a backlog queue, a run with its journal, and the primary do with a few messages.

A state is what all of them have; an event is one of them, and all that the run then does by itself. So a step of the
run that waits for nobody (write to the journal, then send) is one event, and a crash within it is that of before, or of
after. Each event that is not `FREE` is a fault or a wish of the operator, of which a state has a budget.

One message of a queue is sent in one batch with those that wait for the same destination, and settled at once: a wait
for more of them, as the mover does it, changes when a batch leaves, which this model leaves open anyway.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from tests.model.search import Wrong

READY, LOCKED, LEFT, GONE, DEAD = "ready", "locked", "left", "gone", "dead"
"""Where the source has a message. LEFT: its lock is that of a connection that has ended.

DEAD: in the dead-letter queue, beyond its limit of deliveries, or since the primary refused it.
"""

WAITS, SENDS, RELEASES, SETTLES, BURIES = "waits", "sends", "releases", "settles ", "buries "
"""What the run does with a delivery.

SETTLES is followed by the first number of what is completed together, BURIES by that of a message it dead-letters.
"""

SENDING, ACCEPTED, CRASHED, REPORTED = "s", "a", "u", "e"
"""The journal's row of a message: sent by this run, accepted in it, in a crashed run, or in one with a receipt.

In upper case: the run has ended it, and that is not written yet.
"""

KNOWN = frozenset("aue")
"""Rows of messages that the primary is known to have."""


class Message(NamedTuple):
    """What everybody knows of a message.

    `deliveries` that ended by an expiry; `copies` in the primary; `hold`: what the run does with it. `lost` is the lock
    of that delivery: 0, it is held; 1, it is lost; 2, the run knows; 3, and counts it as ended. `again`: its next
    delivery waits for the end of this one. `row` is its entry in the journal, `doubt` that of a send without an
    outcome: open and to be named ("O"), open and named before ("o"), ended in this run ("X", "x").
    `unsettled`: to be settled over the next connection. `fresh`: there twice since the last receipt. `told`: named in a
    receipt. `slipped`: a lock of it was lost.
    """

    source: str = READY
    deliveries: int = 0
    copies: int = 0
    hold: str = ""
    lost: int = 0
    again: bool = False
    row: str = ""
    doubt: str = ""
    unsettled: bool = False
    fresh: bool = False
    told: bool = False
    slipped: bool = False


class Budget(NamedTuple):
    """How many of each are left: crashes, lost locks, failures of the primary and of the backlog, stops and pauses."""

    crashes: int = 0
    expiries: int = 0
    primary: int = 0
    backlog: int = 0
    stops: int = 0
    pauses: int = 0


OFF, MOVES, PAUSES, PAUSED, STOPS, LOSES, QUITS, LOST = (
    *("off", "moves", "pauses", "paused", "stops"),  # PAUSES and STOPS: it starts no more sends
    *("loses", "quits", "lost"),  # without the backlog: until the primary has answered, the same and stops, and then
)


class State(NamedTuple):
    """`away` are the destinations that the run leaves in peace for a while."""

    run: str
    budget: Budget
    away: frozenset[str]
    messages: tuple[Message, ...]


Event: TypeAlias = tuple[object, ...]
Messages: TypeAlias = list[Message]
FREE = frozenset({"start", "deliver", "accept", "settle", "retry", "free", "notice", "connect", "resume", "end"})
"""Names of events that are no fault."""


# What happens to one message.

_OPEN = {"O": "O", "o": "o", "X": "O", "x": "o", "": ""}
_ENDED = {"O": "X", "o": "x", "X": "X", "x": "x", "": ""}
_IN_DOUBT = {"O": "O", "o": "O", "X": "O", "x": "O", "": "O"}


@cache
def written(m: Message) -> Message:
    return m._replace(row="") if m.row.isupper() else m


@cache
def arrived(m: Message, detects_duplicates: bool) -> Message:
    if m.copies and not m.doubt:
        raise Wrong("a message is sent again that is known to have arrived")
    copies = 1 if detects_duplicates else min(2, m.copies + 1)
    return m._replace(copies=copies, fresh=m.fresh or copies == 2)


@cache
def accepted(m: Message, settles: str) -> Message:
    """After an answer. Without the backlog, nothing can be settled."""
    m = m._replace(row=ACCEPTED, doubt=_ENDED[m.doubt], hold=settles)
    return m if settles else left(m._replace(hold=WAITS), True)


@cache
def completed(m: Message) -> Message:
    if m.lost:
        return m._replace(hold="", lost=0)
    return m._replace(source=GONE, hold="", row=m.row.upper(), doubt=_ENDED[m.doubt])


@cache
def buried(m: Message) -> Message:
    if m.lost:
        return m._replace(hold="", lost=0)
    return m._replace(source=DEAD, hold="", row=m.row.upper(), doubt=_ENDED[m.doubt])


@cache
def unlocked(m: Message) -> Message:
    held = m.again or not m.lost
    return m._replace(hold="", lost=0, again=False, source=READY if held else m.source)


@cache
def settled(m: Message) -> Message:
    """After a settlement that arrived, and whose confirmation did not."""
    if m.hold == RELEASES:
        return unlocked(m)
    if m.hold.startswith(BURIES):
        return m if m.lost else m._replace(source=DEAD)
    return m._replace(source=GONE) if m.hold.startswith(SETTLES) and not m.lost else m


@cache
def delivered(m: Message, number: int) -> Message:
    """The next delivery of a message. One that waits for nothing but its turn is superseded, and ends."""
    if m.hold not in ("", WAITS):
        return m._replace(source=LOCKED, lost=2, again=True)
    return m._replace(source=LOCKED, lost=0, hold=f"{SETTLES}{number}" if m.row in KNOWN else WAITS)


@cache
def admitted(m: Message, number: int) -> Message:
    """After the end of the delivery for which the next one waited."""
    return delivered(m._replace(again=False), number) if m.again and not m.hold else m


@cache
def returned(m: Message) -> Message:
    """After a round that found its lock lost."""
    return m._replace(hold="", lost=0)


@cache
def noticed(m: Message) -> Message:
    """After a renewal that found its lock lost. A delivery that waits ends."""
    return returned(m) if m.hold == WAITS else m._replace(lost=3 if m.hold == RELEASES else 2)


@cache
def failed(m: Message, in_doubt: bool) -> Message:
    """After a send that was not accepted: without an outcome, or not sent."""
    if in_doubt:
        return m._replace(hold=WAITS, row="", doubt=_IN_DOUBT[m.doubt])
    return m._replace(hold=WAITS, row=SENDING.upper())


@cache
def refused(m: Message, buries: str) -> Message:
    """After the refusal of a message, which no later send would change. Without the backlog, it stays there."""
    m = m._replace(hold=buries or WAITS, row=SENDING.upper())
    return m if buries else left(m, True)


@cache
def left(m: Message, remembered: bool) -> Message:
    """After the end of its connection and of what the run did with it, or of the process.

    `remembered`: it is settled over the next connection.
    """
    is_own = m.hold != "" and m.source in (LOCKED, LEFT)
    return disconnected(m)._replace(hold="", lost=0, again=False, unsettled=remembered and is_own)


@cache
def disconnected(m: Message) -> Message:
    return m._replace(source=LEFT, slipped=True) if m.source == LOCKED else m


@cache
def crashed(m: Message, has_arrived: bool, detects_duplicates: bool) -> Message:
    """`has_arrived`: what was on its way, to either side."""
    if m.hold == SENDS and has_arrived:
        m = arrived(m, detects_duplicates)
    elif has_arrived:
        m = settled(m)
    in_doubt = m.row in ("s", "S")
    row = {"s": "", "S": "", "a": "u", "A": "u", "U": "u", "E": "e"}.get(m.row, m.row)
    return left(m._replace(row=row, doubt="O" if in_doubt else _OPEN[m.doubt]), False)


@cache
def expired(m: Message, limit: int | None) -> Message:
    deliveries = 0 if limit is None else m.deliveries + 1
    is_dead = limit is not None and deliveries >= limit
    m = m._replace(source=DEAD if is_dead else READY, deliveries=deliveries, slipped=True, unsettled=False)
    return m._replace(lost=1) if m.hold and not m.lost else m


@cache
def settled_left(m: Message) -> Message:
    """Over the next connection, with the token of its lock."""
    if not m.unsettled or m.source != LEFT:
        return m._replace(unsettled=False)
    if m.row in KNOWN:
        return m._replace(source=GONE, row=m.row.upper(), doubt=_ENDED[m.doubt], unsettled=False)
    return m._replace(source=READY, unsettled=False)


def is_named(m: Message) -> bool:
    """Whether the receipt of a run that ends now names it as perhaps there twice."""
    return m.row in (ACCEPTED, CRASHED) or m.doubt not in ("", "o")


def keeps_its_place(m: Message) -> bool:
    """Whether it has to arrive before those behind it."""
    return not (m.copies or m.slipped or m.doubt or m.source == DEAD or m.hold.startswith(BURIES))


@cache
def reported(m: Message) -> Message:
    """After the receipt of a run that holds nothing."""
    told = is_named(m)
    if m.fresh and not (told or m.told):
        raise Wrong("a message is there twice, and the receipt does not name it")
    row = REPORTED if m.row in KNOWN else ""
    doubt = "o" if m.doubt in ("O", "o") else ""
    m = left(m._replace(row=row, doubt=doubt, fresh=False, told=m.told or told), False)
    if m.copies and m.source != GONE and not (m.told or (row and m.source != DEAD)):
        raise Wrong("a message is in both namespaces, and no receipt names it")
    return m


# The model.


class MoveModel:
    """`to` is the destination of each message. The source dead-letters a message at the `limit` of its deliveries.

    With `detects_duplicates`, a destination drops a second copy.
    """

    free = FREE

    def __init__(self, to: str, budget: Budget, *, limit: int | None = None, detects_duplicates: bool = False) -> None:
        self.to = to
        self.limit = limit
        self.detects_duplicates = detects_duplicates
        self.first = State(OFF, budget, frozenset(), (Message(),) * len(to))

    def ends(self, state: State) -> bool:
        """Whether nothing remains to be done."""
        return state.run == OFF and all(m.source in (GONE, DEAD) for m in state.messages)

    def check(self, state: State) -> None:
        """Raise Wrong if what always holds does not."""
        for m in state.messages:
            if m.source == GONE and not m.copies:
                raise Wrong("a message left the backlog, and the primary does not have it")
            if state.run in (OFF, PAUSED) and (m.hold or m.source == LOCKED):
                raise Wrong("a run holds a message while it is paused or over")

    def next(self, state: State) -> Iterator[tuple[Event, State]]:
        """Iterate over the events that may come now, each with the state after it."""
        run, budget, _, messages = state
        if run == OFF:
            if not self.ends(state):
                yield ("start",), state._replace(run=MOVES)
        else:
            yield from self._answers(state)
            yield from self._wishes(state)
            if budget.crashes:
                yield from self._crash(state)
            if run == LOST:
                yield from self._connect(state)
            elif budget.backlog and run in (MOVES, PAUSES, STOPS):
                yield from self._lose_backlog(state)
        for at, m in enumerate(messages):
            if m.source == LEFT:
                yield ("free", at), self._with(state, at, expired(m, self.limit))
            elif m.source == LOCKED and budget.expiries and not m.again:
                spent = state._replace(budget=budget._replace(expiries=budget.expiries - 1))
                yield ("expire", at), self._with(spent, at, expired(m, self.limit))

    # Events of a run.

    def _answers(self, state: State) -> Iterator[tuple[Event, State]]:
        run, budget, away, messages = state
        for destination in sorted(set(self.to)):
            batch = [at for at, m in enumerate(messages) if m.hold == SENDS and self.to[at] == destination]
            if batch:
                yield ("accept", destination), self._accept(state, batch)
                if budget.primary:
                    spent = state._replace(budget=budget._replace(primary=budget.primary - 1))
                    for has_arrived in (True, False):
                        yield ("doubt", destination, has_arrived), self._fail(spent, batch, True, has_arrived)
                    yield ("put off", destination), self._fail(spent, batch, False, False)
                    if len(batch) == 1:
                        yield ("refuse", destination), self._refuse(spent, batch[0])
            elif destination in away:
                yield ("retry", destination), self._go_on(state._replace(away=away - {destination}), messages)
        yield from self._confirmations(state)
        if run == MOVES:
            first = next((at for at, m in enumerate(messages) if m.source == READY), None)
            if first is not None:
                changed = [*messages]
                changed[first] = delivered(messages[first], first)
                yield ("deliver", first), self._go_on(state, changed)

    def _confirmations(self, state: State) -> Iterator[tuple[Event, State]]:
        messages = state.messages
        for hold in sorted({m.hold for m in messages if m.hold.startswith(SETTLES)}):
            after = [completed(m) if m.hold == hold else m for m in messages]
            yield ("settle", hold), self._go_on(state, [admitted(m, at) for at, m in enumerate(after)])
        for at, m in enumerate(messages):
            if m.hold.startswith(BURIES):
                changed = [*messages]
                changed[at] = admitted(buried(m), at)
                yield ("settle", m.hold), self._go_on(state, changed)
        if any(m.hold == RELEASES for m in messages):
            yield ("settle", RELEASES), self._over(state, [unlocked(m) if m.hold else m for m in messages])
        if any(m.lost == 1 for m in messages) and state.run not in (LOSES, QUITS, LOST):
            yield ("notice",), self._go_on(state, [noticed(m) if m.lost == 1 else m for m in messages])

    def _wishes(self, state: State) -> Iterator[tuple[Event, State]]:
        run, budget, _, messages = state
        if run == PAUSED:
            yield ("resume",), state._replace(run=MOVES)
        if run == MOVES and budget.pauses:
            asked = state._replace(run=PAUSES, away=frozenset(), budget=budget._replace(pauses=budget.pauses - 1))
            yield ("pause",), self._go_on(asked, messages)
        if run in (STOPS, QUITS):
            return
        if not any(m.hold or m.source in (READY, LOCKED, LEFT) for m in messages):
            yield ("end",), self._stop(state)
        elif budget.stops:
            yield ("stop",), self._stop(state._replace(budget=budget._replace(stops=budget.stops - 1)))

    def _stop(self, state: State) -> State:
        if state.run in (PAUSED, LOST):
            return self._report(state, state.messages)
        return self._go_on(state._replace(run=QUITS if state.run == LOSES else STOPS, away=frozenset()), state.messages)

    def _accept(self, state: State, batch: Sequence[int]) -> State:
        messages = self._arrive(state.messages, batch)
        settles = "" if state.run in (LOSES, QUITS) else f"{SETTLES}{batch[0]}"
        for at in batch:
            messages[at] = accepted(messages[at], settles)
        return self._go_on(state, list(map(written, messages)))

    def _fail(self, state: State, batch: Sequence[int], in_doubt: bool, has_arrived: bool) -> State:
        messages = self._arrive(state.messages, batch) if has_arrived else [*state.messages]
        for at in batch:
            messages[at] = failed(messages[at], in_doubt)
        away = state.away | {self.to[batch[0]]} if state.run == MOVES else state.away
        return self._go_on(state._replace(away=away), list(map(written, messages)))

    def _refuse(self, state: State, at: int) -> State:
        messages = [*state.messages]
        messages[at] = refused(messages[at], "" if state.run in (LOSES, QUITS) else f"{BURIES}{at}")
        return self._go_on(state, list(map(written, messages)))

    def _arrive(self, messages: Sequence[Message], batch: Sequence[int]) -> Messages:
        changed = [*messages]
        for at in batch:
            ahead = [m for before, m in enumerate(changed[:at]) if self.to[before] == self.to[at]]
            if not changed[at].copies and any(map(keeps_its_place, ahead)):
                raise Wrong("a message overtook another one, of which neither a lock nor an outcome was lost")
            changed[at] = arrived(changed[at], self.detects_duplicates)
        return changed

    def _go_on(self, state: State, messages: Sequence[Message]) -> State:
        """What a run does by itself: it starts rounds; if it is to start none, it waits for pending calls, and ends."""
        changed = [*messages]
        if state.run != MOVES:
            return self._finish(state, changed)
        has_sent = False
        for destination in set(self.to) - state.away:
            its = [at for at, m in enumerate(changed) if self.to[at] == destination]
            if any(changed[at].hold == SENDS for at in its):
                continue
            for at in its:
                if changed[at].hold == WAITS and changed[at].lost == 2:
                    changed[at] = admitted(returned(changed[at]), at)
            for at in its:
                if changed[at].hold == WAITS:
                    has_sent = True
                    changed[at] = changed[at]._replace(hold=SENDS, row=SENDING)
        return state._replace(messages=tuple(map(written, changed) if has_sent else changed))

    def _finish(self, state: State, messages: Messages) -> State:
        if any(m.hold not in ("", WAITS) for m in messages):
            return state._replace(messages=tuple(messages))
        if state.run in (LOSES, QUITS):
            return self._over(state, [left(m, True) if m.hold else m for m in messages])
        if any(m.hold for m in messages):
            return state._replace(messages=tuple(m._replace(hold=RELEASES) if m.hold else m for m in messages))
        return self._over(state, messages)

    def _over(self, state: State, messages: Messages) -> State:
        """After the end of a mover: it holds nothing."""
        if state.run in (STOPS, QUITS):
            return self._report(state, messages)
        return state._replace(run=PAUSED if state.run == PAUSES else LOST, messages=tuple(messages))

    def _report(self, state: State, messages: Sequence[Message]) -> State:
        return state._replace(run=OFF, away=frozenset(), messages=tuple(map(reported, messages)))

    # Faults.

    def _crash(self, state: State) -> Iterator[tuple[Event, State]]:
        budget = state.budget._replace(crashes=state.budget.crashes - 1)
        for reached in self._choices(state.messages, sends=True):
            messages = [*state.messages]
            for at in [at for at, m in enumerate(messages) if m.hold == SENDS and self._call(at, m) in reached]:
                messages = self._arrive(messages, [at])
                messages[at] = messages[at]._replace(hold=WAITS)
            calls = [self._call(at, m) in reached for at, m in enumerate(messages)]
            after = (crashed(m, call, self.detects_duplicates) for m, call in zip(messages, calls, strict=True))
            yield ("crash", reached), State(OFF, budget, frozenset(), tuple(after))

    def _lose_backlog(self, state: State) -> Iterator[tuple[Event, State]]:
        """The end of its connection: what was being settled may have arrived, and is not confirmed."""
        spent = state._replace(budget=state.budget._replace(backlog=state.budget.backlog - 1), away=frozenset())
        for reached in self._choices(state.messages, sends=False):
            messages: Messages = []
            for at, m in enumerate(state.messages):
                after = settled(m) if self._call(at, m) in reached else m
                is_over = after.hold and after.hold not in (WAITS, SENDS)
                messages.append(left(after, True) if is_over else disconnected(after))
            run = QUITS if state.run == STOPS else LOSES
            yield ("lose", reached), self._go_on(spent._replace(run=run), messages)

    def _connect(self, state: State) -> Iterator[tuple[Event, State]]:
        settled = tuple(map(settled_left, state.messages))
        yield ("connect", True), state._replace(run=MOVES, messages=settled)
        if state.budget.backlog and any(m.unsettled for m in state.messages):
            kept = tuple(m._replace(unsettled=False) for m in state.messages)
            budget = state.budget._replace(backlog=state.budget.backlog - 1)
            yield ("connect", False), state._replace(run=MOVES, budget=budget, messages=kept)

    def _call(self, at: int, m: Message) -> str:
        return f"{SENDS} {self.to[at]}" if m.hold == SENDS else m.hold

    def _choices(self, messages: Sequence[Message], *, sends: bool) -> Iterator[frozenset[str]]:
        """Iterate over the sets of pending calls that have reached the other side."""
        calls = {self._call(at, m) for at, m in enumerate(messages) if m.hold not in ("", WAITS)}
        pending = sorted(call for call in calls if sends or not call.startswith(SENDS))
        for choice in product((True, False), repeat=len(pending)):
            yield frozenset(call for call, is_there in zip(pending, choice, strict=True) if is_there)

    def _with(self, state: State, at: int, m: Message) -> State:
        messages = (*state.messages[:at], m, *state.messages[at + 1 :])
        return state._replace(messages=messages)
