"""What a state directory knows of one message."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Doubt, Journal, find_flights
from sbpair.runs.message_search import find_recorded
from sbpair.runs.run_log import RunEntry, all_runs
from tests.runs.states import KEY, PAIR, accepted, sending

Step = Callable[[Journal, int], None]


def named(journal: Journal, flight: int) -> None:
    journal.note_in_doubt(flight)
    journal.note_completed([KEY])
    journal.note_named()
    journal.close()


@pytest.mark.parametrize(
    ("step", "lives", "outcome", "in_doubt"),
    [
        (lambda journal, flight: None, True, "being sent", False),  # noqa: ARG005
        (lambda journal, flight: None, False, "sent without an answer", True),  # noqa: ARG005
        (lambda journal, flight: journal.note_in_doubt(flight) or journal.close(), True, "sent without an", True),
        (accepted, False, "accepted; its source may still have it", False),
        (named, False, "sent without an answer, and ended by a later", False),
    ],
    ids=["sent", "killed", "doubtful", "accepted", "settled"],
)
def test_the_journal_says_how_a_message_ended(
    tmp_path: Path, step: Step, lives: bool, outcome: str, in_doubt: bool
) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state, ExitStack() as live:
        entry = live.enter_context(closing(RunEntry(state, "syphon --once")))
        journal = Journal(state, run=entry.id, destination_namespace="contoso.example", service_ms=lambda: 5_000)
        step(journal, sending(journal, [KEY, ("contoso-dr", "q", 2, 1, "m2")], "orders"))
        doubt = {"queue": "Q", "sequence_number": 1, "message_id": "m", "destination": "orders", "reason": "no answer"}
        entry.record({"doubtful": [doubt]})
        if not lives:
            live.close()
        [found] = find_recorded(state, all_runs(state), "m")
        assert found.message == Doubt(entry.id, "q", 1, "m", "orders", "contoso.example")
        assert (found.record, found.at_ms, found.enqueued_ms, found.in_doubt) == ("journal", 5_000, 1, in_doubt)
        assert found.outcome.startswith(outcome)
        assert [*find_recorded(state, all_runs(state), "1")] == [found]
        state.write(("DELETE FROM flights", [()]))
        [named] = find_recorded(state, all_runs(state), "m")
        assert (named.record, named.outcome) == ("receipt", "may be there twice: no answer")


@settings(max_examples=25)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
def test_any_message_id_is_found_and_no_other(ids: list[str]) -> None:
    with TemporaryDirectory() as home, RunDatabase(Path(home), PAIR.ends) as state:
        journal = Journal(state, run="r")
        sending(journal, [("contoso-dr", "q", 2**62 + number, 1, each) for number, each in enumerate(ids)], "orders")
        for each in [*ids, "other", ids[0][:-1], '"']:
            found = [message.message_id for message, *_ in find_flights(state, each)]
            assert found == [each] * (each in ids)
