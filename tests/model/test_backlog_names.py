"""Backlog queues: names and the exact description."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import backlog
from sbpair.errors import NameInvalid
from sbpair.model.queues import QueueSpec


def test_a_backlog_path_equals_that_of_the_original() -> None:
    assert backlog.queue_path("contoso", 0) == "contoso/x-servicebus-transfer/0"


def test_a_backlog_queue_has_the_description_of_the_original() -> None:
    assert backlog.queue_spec("contoso", 3) == QueueSpec(
        path="contoso/x-servicebus-transfer/3",
        lock_duration="PT1M",
        max_size_in_megabytes=5120,
        max_delivery_count=2147483647,
        default_message_time_to_live="P10675199DT2H48M5.4775807S",
        auto_delete_on_idle="P10675199DT2H48M5.4775807S",
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
        requires_session=False,
        requires_duplicate_detection=False,
        forward_to="",
        forward_dead_lettered_messages_to="",
        status="Active",
    )


@pytest.mark.parametrize(
    ("path", "index"),
    [
        ("contoso/x-servicebus-transfer/0", 0),
        ("Contoso/X-ServiceBus-Transfer/12", 12),
        ("contoso/x-servicebus-transfer/07", None),
        ("contoso/x-servicebus-transfer/", None),
        ("contoso/x-servicebus-transfer/-1", None),
        ("contoso/x-servicebus-transfer/+1", None),
        ("contoso/x-servicebus-transfer/1/2", None),
        ("contoso/x-servicebus-transfer/\u0661", None),
        ("contoso/x-servicebus-transfer/0\n", None),
        ("contoso-dr/x-servicebus-transfer/0", None),
        ("orders", None),
    ],
)
def test_the_index_is_read_in_any_case(path: str, index: int | None) -> None:
    assert backlog.index_of("contoso", path) == index


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,48}", fullmatch=True), st.integers(0, 9999))
def test_index_and_primary_round_trip_through_the_path(primary: str, index: int) -> None:
    path = backlog.queue_path(primary, index)
    assert backlog.index_of(primary, path.upper()) == index
    assert backlog.primary_of(path) == primary


@pytest.mark.parametrize("primary", ["", "a/b", "a b", "..", ".", "ümlaut", "a?b", "a~b"])
def test_a_primary_with_an_invalid_name_is_refused(primary: str) -> None:
    with pytest.raises(NameInvalid):
        backlog.queue_path(primary, 0)


def test_a_path_has_at_most_260_characters() -> None:
    fits = 260 - len("/x-servicebus-transfer/0")
    assert len(backlog.queue_path("a" * fits, 0)) == 260
    with pytest.raises(NameInvalid, match="261 characters"):
        backlog.queue_path("a" * (fits + 1), 0)


def test_an_index_below_zero_is_refused() -> None:
    with pytest.raises(NameInvalid):
        backlog.queue_path("contoso", -1)
