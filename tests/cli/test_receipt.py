"""Queues, destinations and operations of a receipt as text."""

import pytest

from sbpair.cli.render import table
from sbpair.cli.render.receipt import (
    ROWS_SHOWN,
    SYPHON,
    TEXT_SHOWN,
    backing_off_lines,
    breakdown,
    proof_lines,
    receipt_table,
)
from sbpair.cli.render.table import Layout
from sbpair.model.document import encoded
from sbpair.move.receipt import (
    MAX_BACKING_OFF,
    MAX_DOUBTFUL,
    MAX_LISTED,
    BackingOff,
    KeptRecord,
    MissingDestination,
    NamedMessage,
    RampRecord,
    RampState,
    RampStep,
    Tally,
)
from sbpair.runs.run_record import RemainingMessages
from sbpair.syphon.run_result import SyphonResult


def test_columns_and_rows_that_are_zero_or_of_later_versions_are_omitted() -> None:
    assert list(breakdown({})) == []
    queues = {"q": {"received": 1, "sent": 1, "released": 0}, "idle": {"received": 0, "sent": 0}}
    assert list(breakdown({"queues": queues, "destinations": {}})) == [
        *("", "QUEUE  RECEIVED  SENT", "q             1     1")
    ]


def test_many_destinations_are_cut_short() -> None:
    found = list(breakdown({"destinations": {f"d{number:03}": 1 for number in range(ROWS_SHOWN + 5)}}))
    assert len(found) == ROWS_SHOWN + 3
    assert found[-1] == "… and 5 more: --output json has all of them"


def test_destinations_that_took_no_more_are_named_in_one_line_each() -> None:
    tally = Tally()
    tally.backing_off("q", [BackingOff("gone", "earlier", "", 5)])
    tally.backing_off("q", [BackingOff("a\x1b[2J", "full\nnow", "wait", 1), BackingOff("Two", "away", "", 2)])
    tally.backing_off("r", [BackingOff("two", "busy", "retry", 3), BackingOff("long", "x" * 1_000, "h", 1)])
    assert list(backing_off_lines(encoded(tally.receipt()))) == [
        "Two took no more: away; run again later; 5 messages left",
        "a\ufffd[2J took no more: full\ufffdnow; wait; 1 message left",
        f"long took no more: {'x' * (TEXT_SHOWN - 1)}…; h; 1 message left",
    ]
    assert list(backing_off_lines({})) == []


def test_destinations_that_took_no_more_are_bounded() -> None:
    tally = Tally()
    tally.backing_off("q", [BackingOff(f"d{number:03}", "away", "", 1) for number in range(MAX_BACKING_OFF + 5)])
    receipt = tally.receipt()
    assert (len(receipt.backing_off), receipt.backing_off_total) == (MAX_BACKING_OFF, MAX_BACKING_OFF + 5)
    lines = list(backing_off_lines(encoded(receipt)))
    assert lines[0] == "d000 took no more: away; run again later; 1 message left"
    assert lines[ROWS_SHOWN:] == [f"… and {MAX_BACKING_OFF + 5 - ROWS_SHOWN} destinations more took no more"]


def test_a_proof_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "stdout_layout", lambda: Layout(80))
    counts = dict.fromkeys(("acknowledged", "expired", "quarantined", "deduplicated"), 0)
    named = [{"message_id": f"a-long-message-id-of-number-{at}"} for at in range(3)]
    proof = {"run": "r", "mode": "archive", "archived": 20_000, **counts, "unsent": 20_000, "queues": {}}
    proof |= {"destinations": {}, "reasons": {"refused by a rule " * 5: 1}, "doubtful": named, "doubtful_total": 3}
    proof |= {"remaining_in_queues": {"contoso/x-servicebus-transfer/0": 1_000}, "unreadable": []}
    lines = list(proof_lines({**proof, "contradictions": [], "unknown": 0}))
    assert max(map(len, lines)) <= 80
    assert lines[1:3] == [
        "archived 20000 = 0 acknowledged + 0 expired + 0 quarantined + 0 deduplicated +",
        "  20000 unsent",
    ]


@pytest.mark.parametrize(("more", "shown"), [(0, 1), (1, 2)])
def test_possible_duplicates_beyond_those_that_are_named_are_counted(more: int, shown: int) -> None:
    tally = Tally()
    for number in range(MAX_DOUBTFUL + more):
        tally.doubtful(NamedMessage("c/t/0", number, None, "orders", "no answer"))
    lines = receipt_table(encoded(SyphonResult(tally.receipt(), (), 1.0, False)), {}, SYPHON)
    found = [line for line in lines if line.startswith("possible duplicates: ")]
    assert len(found) == shown
    assert found[-1] == "possible duplicates: 20001 in all" or not more


def test_messages_that_an_earlier_run_kept_are_named_beside_its_own() -> None:
    tally = Tally()
    tally.received("q", 5)
    tally.sent("q", "removed", 3, 9)
    tally.ended("q", "already_sent", 2)
    kept = KeptRecord("f.jsonl", 3, 2_048, 2)
    lines = list(receipt_table(encoded(SyphonResult(tally.receipt(), (), 1.0, False, kept=kept)), {}, SYPHON))
    assert lines[2:4] == ["removed            3", "kept before        2"]
    assert lines[9:11] == [
        "3 messages kept in f.jsonl, 2.0 KB",
        "2 messages kept by an earlier run, removed by this one",
    ]


def test_what_came_back_is_named_with_its_reason() -> None:
    tally, back = Tally(), NamedMessage("orders/$deadletterqueue", 7, "m10", "orders", "Poison: it is bad")
    tally.ramp = RampRecord((1,), 30.0, RampState.STOPPED, (RampStep(1, 1, 1.0, 1),), (back,), came_back_total=1)
    lines = receipt_table(encoded(SyphonResult(tally.receipt(), (), 1.0, False)), {}, SYPHON)
    assert "came back: 1 message (m10): Poison: it is bad" in list(lines)


def test_dead_letters_beyond_the_named_ones_are_counted_by_destination() -> None:
    tally, named = Tally(), NamedMessage("c/t/0", 7, "m7", "gone", "it does not exist")
    for _ in range(MAX_LISTED + 500):
        tally.dead_lettered(named, "DestinationNotFound")
    missing = (MissingDestination("gone", 1_100, 0), MissingDestination("lost", 400, 0))
    lines = list(
        receipt_table(encoded(SyphonResult(tally.receipt(), (), 1.0, False, missing_destinations=missing)), {}, SYPHON)
    )
    assert "dead-lettered: at least 1000 messages (m7, m7, m7, …): it does not exist" in lines
    assert "dead-lettered: 1500 in all" in lines
    assert lines[lines.index("DESTINATION  DEAD LETTERED") + 1 :][:2] == [
        "gone                  1100",
        "lost                   400",
    ]


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (RemainingMessages(5, exact=True), "5 messages in the backlog"),
        (RemainingMessages(9, exact=True), "9 messages in the backlog, 4 of them not received"),
        (RemainingMessages(5, exact=False), "at least 5 messages in the backlog"),
        (RemainingMessages(0, exact=False), "how many messages are left in the backlog is not known"),
    ],
)
def test_messages_left_are_a_total_only_where_it_is_known(left: RemainingMessages, text: str) -> None:
    tally = Tally()
    tally.received("c/t/0", 7)
    tally.ended("c/t/0", "skipped", 2)
    tally.backing_off("c/t/0", [BackingOff("full", "busy", "", 5)])
    lines = list(receipt_table(encoded(SyphonResult(tally.receipt(), (), 1.0, False, "r", remaining=left)), {}, SYPHON))
    assert lines[-1] == f"run r ended after 1s; {text}"
    least = "" if left == RemainingMessages(5, exact=True) else "at least "
    assert f"full took no more: busy; run again later; {least}5 messages left" in lines
