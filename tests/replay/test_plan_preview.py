"""The preview's outcomes, message by message, against a simple count."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import errors
from sbpair.move.message.route import Facts, Send, route
from sbpair.replay import outcomes as outcome
from sbpair.replay.outcomes import PlanPreview, normalize_destinations
from sbpair.runs.journal import message_key

facts = st.builds(
    Facts,
    queue=st.sampled_from(["q/0", "q/1"]),
    sequence_number=st.integers(1, 5),
    enqueued_at=st.integers(1, 3),
    message_id=st.sampled_from([None, "", "a", "b", "\ud800"]),
    path=st.sampled_from([None, "orders", "ORDERS", "/invoices/", "no such"]),
)


@given(st.lists(facts), st.booleans(), st.sampled_from([(), ("Orders",)]))
def test_each_message_is_counted_as_a_run_would_end_it(messages: list[Facts], once: bool, chosen: tuple[str]) -> None:
    preview = PlanPreview("dr", dedup=once, destinations=chosen)
    outcomes = Counter(preview(message, route(message)) for message in messages)
    places = [
        (decision.destination.lower(), message.message_id)
        for message in messages
        if isinstance(decision := route(message), Send)
    ]
    named_ones = [place for place in places if place[1]]
    assert sum(n for (_, again), n in outcomes.items() if again) == len(named_ones) - len(set(named_ones))
    left = [message for message in messages if chosen and (message.path or "").lower() != "orders"]
    assert sum(n for (fate, _), n in outcomes.items() if fate == outcome.UNSENT) == len(left)
    ours = [place for place in named_ones if not chosen or place[0] == "orders"]
    assert outcomes[outcome.DEDUPLICATED, True] == (len(ours) - len(set(ours)) if once else 0)


def test_selection_and_duplicates_go_by_the_names_that_messages_say() -> None:
    """Two destinations that become one have no duplicates of each other: a run sends both."""
    preview = PlanPreview("dr", dedup=True, destinations=["orders"])
    [first, second] = [Facts("q/0", number, 1, "a", path) for number, path in enumerate(("orders", "sales"))]
    renamed = Send("all", None, None, None)
    assert [preview(each, renamed) for each in (first, second)] == [(None, False), (outcome.UNSENT, False)]
    assert preview(first, renamed) == (outcome.DEDUPLICATED, True)


def test_accepted_messages_match_by_all_five_parts_of_their_key() -> None:
    known = Facts("q/0", 1, 2, "a", "orders")
    preview = PlanPreview("dr", dedup=True, accepted=[message_key("dr", known)])
    assert preview(known, route(known)) == (outcome.ALREADY_SENT, False)
    for change in ({"queue": "q/1"}, {"sequence_number": 9}, {"enqueued_at": 9}, {"message_id": "c"}):
        other = known._replace(**change)
        assert preview(other, route(other))[0] != outcome.ALREADY_SENT


def test_it_reports_that_message_ids_overflowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "MAX_REMEMBERED", 1)
    preview = PlanPreview("dr", dedup=False)
    for name in "abb":
        message = Facts("q/0", 1, 2, name, "orders")
        assert preview(message, route(message)) == (None, False)
    assert preview.ids_overflowed


def test_destinations_are_valid_and_named_once() -> None:
    for name in ("", "no such", "a//b", "a" * 261, "orders;", "'", "../orders"):
        with pytest.raises(errors.NameInvalid):
            normalize_destinations([name])
    assert normalize_destinations(["orders", "/orders/", "sales/orders"]) == ("orders", "sales/orders")
