"""The pure parts of a move: where a message goes, what a receipt adds up to, what a journal remembers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.model.document import encoded
from sbpair.move.message.dead_letters import NotSentReason
from sbpair.move.message.route import DeadLetter, Expire, Facts, Send, TimeToLive, missing, refused, route, router
from sbpair.move.receipt import BUCKETS, MAX_DOUBTFUL, MAX_LISTED, FilterCounts, NamedMessage, Receipt, Tally
from sbpair.runs.journal import message_key

# Route


def facts(**changed) -> Facts:
    return Facts(
        **{"queue": "q", "sequence_number": 1, "enqueued_at": 2, "message_id": "m", "path": "orders", **changed}
    )


def test_a_message_with_a_path_is_sent_there_with_what_its_aliases_say():
    sent = route(facts(session_id="s", ttl_ticks=600_000_000, scheduled_at=5))
    assert sent == Send("orders", "s", 60_000, 5)
    assert route(facts()) == Send("orders", None, None, None)


REMAINING = TimeToLive.REMAINING
moments = st.integers(1, 4_000_000_000_000)


@given(moments, st.integers(-(10**12), 10**12), st.none() | moments, st.integers(1, 2**63 - 1))
def test_remaining_ttl_ends_at_the_original_deadline(came, later, scheduled, ticks):
    now = came + later
    begins = came if scheduled is None else max(came, scheduled)
    deadline = max(now, begins) + -(-ticks // 10_000) - max(0, now - begins)
    decision = route(facts(enqueued_at=came, ttl_ticks=ticks, scheduled_at=scheduled), ttl=REMAINING, now_ms=now)
    if deadline <= now:
        assert isinstance(decision, Expire)
        assert decision.reason == NotSentReason.EXPIRED
    else:
        assert isinstance(decision, Send)
        assert decision.ttl_ms is not None
        assert max(now, begins) + decision.ttl_ms == deadline
        assert decision.scheduled_at == scheduled


@pytest.mark.parametrize(
    ("changed", "now", "expected"),
    [
        ({"ttl_ticks": 600_000_000}, 1_059_999, Send("orders", None, 1, None)),
        ({"ttl_ticks": 600_000_001}, 1_060_000, Send("orders", None, 1, None)),
        # Still to be scheduled, and due while it waited: the time begins at the scheduled time.
        ({"ttl_ticks": 600_000_000, "scheduled_at": 9_000_000}, 8_000_000, Send("orders", None, 60_000, 9_000_000)),
        ({"ttl_ticks": 600_000_000, "scheduled_at": 1_050_000}, 1_070_000, Send("orders", None, 40_000, 1_050_000)),
        # Scheduled for before it came: the time begins when it came.
        ({"ttl_ticks": 600_000_000, "scheduled_at": 5}, 1_020_000, Send("orders", None, 40_000, 5)),
        # No time to live, and nobody to say since when.
        ({}, 9_000_000_000, Send("orders", None, None, None)),
        ({"ttl_ticks": 600_000_000, "enqueued_at": 0}, 9_000_000_000, Send("orders", None, 60_000, None)),
    ],
)
def test_what_remains_of_a_time_to_live(changed, now, expected):
    assert route(facts(**{"enqueued_at": 1_000_000, **changed}), ttl=REMAINING, now_ms=now) == expected


def test_what_is_past_its_time_expires_unless_it_could_go_nowhere():
    late = {"ttl_ticks": 600_000_000, "enqueued_at": 1_000_000}
    past = {"ttl": REMAINING, "now_ms": 1_060_000}
    expired = Expire(NotSentReason.EXPIRED, "its time to live ended before it could be moved back")
    assert route(facts(**late), **past) == expired
    assert router(REMAINING, lambda: 1_060_000, 1_000)([facts(**late)]) == [expired]
    assert isinstance(route(facts(**late, path=None), **past), DeadLetter)
    assert isinstance(route(facts(**late), now_ms=1_060_000), Send)


def test_a_message_without_a_path_is_dead_lettered_with_its_flaw():
    assert route(facts(path=None, flaw="it is bad")) == DeadLetter(NotSentReason.INVALID, "it is bad")
    assert route(facts(path=None)) == DeadLetter(NotSentReason.INVALID, "the message has no destination")


@pytest.mark.parametrize(
    "path", ["no such", "a//b", "../b", "orders?x", "a\n", "\u2603", "x" * 261, "amqps://h/q", "$cbs"]
)
def test_a_path_that_no_entity_can_have_is_dead_lettered_here(path):
    # Asked for a token for it, the service would call the key wrong, and not the path.
    decision = route(facts(path=path))
    assert isinstance(decision, DeadLetter)
    assert "which is not a valid path" in decision.description


@pytest.mark.parametrize(("path", "sent"), [("/billing/invoices/", "billing/invoices"), ("a~b", "a~b"), ("a/~", "a/~")])
def test_outer_slashes_are_nothing_and_of_a_tilde_the_service_decides(path, sent):
    assert route(facts(path=path)) == Send(sent, None, None, None)


def test_a_refusal_names_the_destination_and_the_error():
    text = "queue or topic 'orders' does not exist in the primary namespace"
    assert missing("orders") == DeadLetter(NotSentReason.MISSING, text)
    assert refused("orders", "big") == DeadLetter(NotSentReason.REFUSED, "'orders' refused the message: big")


def test_all_five_parts_tell_one_message_from_another():
    base = message_key("ns", facts())
    others = [
        message_key("other", facts()),
        message_key("ns", facts(queue="other")),
        message_key("ns", facts(sequence_number=9)),
        message_key("ns", facts(enqueued_at=9)),
        message_key("ns", facts(message_id="other")),
    ]
    assert len({base, *others}) == 6
    assert message_key("ns", facts(queue="Q")) == base


# Receipt


@given(st.lists(st.tuples(st.sampled_from(["q/0", "q/1"]), st.sampled_from(BUCKETS)), max_size=60), st.integers(0, 3))
def test_a_receipt_balances_exactly_when_every_delivery_has_one_end(ends, missing):
    tally = Tally()
    for queue, bucket in ends:
        tally.received(queue, 1)
        if bucket == "sent":
            tally.sent(queue, "orders", 1, 10)
        elif bucket in ("dead_lettered", "expired"):
            tally.dead_lettered(NamedMessage(queue, 1, None, None, "why"), "Expired", bucket=bucket)
        else:
            tally.ended(queue, bucket)
    for _ in range(missing):
        tally.received("q/0", 1)
    receipt = tally.receipt()
    assert receipt.balanced == (missing == 0)
    assert receipt.received == len(ends) + missing
    for bucket in BUCKETS:
        assert getattr(receipt, bucket) == sum(each == bucket for _, each in ends)
        assert getattr(receipt, bucket) == sum(queue[bucket] for queue in receipt.queues.values())
    assert sum(receipt.destinations.values()) == receipt.sent
    assert receipt.bytes_sent == 10 * receipt.sent
    assert len(receipt.dead_letters) == receipt.dead_lettered + receipt.expired
    if missing:
        assert receipt.exit_code == 1


def ended(*buckets: str, repeats: int = 0) -> Tally:
    tally = Tally()
    for number, bucket in enumerate(buckets):
        tally.received("q", 1, repeats=number >= len(buckets) - repeats)
        tally.ended("q", bucket)
    return tally


@pytest.mark.parametrize(
    ("tally", "code"),
    [
        (ended(), 0),
        (ended("sent", "sent"), 0),
        (ended("sent", "dead_lettered"), 3),
        (ended("sent", "expired"), 3),
        (ended("sent", "released"), 3),
        (ended("in_doubt"), 3),
        (ended("released", "sent", repeats=1), 0),
        (ended("in_doubt", "sent", repeats=1), 0),
        (ended("sent", "already_sent", repeats=1), 0),
        (ended("released", "released", repeats=1), 3),
    ],
)
def test_the_exit_code_says_whether_anything_is_left_to_look_at(tally, code):
    assert tally.receipt().exit_code == code


def test_a_run_that_did_nothing_has_an_empty_receipt():
    assert Tally().receipt() == Receipt()


def test_a_bucket_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no bucket"):
        ended("lost")


def test_a_receipt_names_only_so_many_messages_and_counts_them_all():
    tally = Tally()
    for number in range(MAX_LISTED + 5):
        tally.received("q", 1)
        tally.dead_lettered(NamedMessage("q", number, None, None, "why"), "DestinationNotFound")
        tally.stayed(NamedMessage("q", number, None, None, "why"))
    for number in range(MAX_DOUBTFUL + 5):
        tally.doubtful(NamedMessage("q", number, None, None, "why"))
    tally.ended("q", "skipped", MAX_LISTED + 7)
    tally.filter_counts = lambda skipped: FilterCounts("n = 1", 0, skipped, 0, "", ())
    receipt = tally.receipt()
    assert len(receipt.stayed) == MAX_LISTED
    assert receipt.where == FilterCounts("n = 1", 0, 2, 0, "", ())
    assert receipt.dead_letter_reasons == {"DestinationNotFound": MAX_LISTED + 5}
    assert (receipt.dead_lettered, len(receipt.dead_letters)) == (MAX_LISTED + 5, MAX_LISTED)
    assert (receipt.doubtful_total, len(receipt.doubtful)) == (MAX_DOUBTFUL + 5, MAX_DOUBTFUL)


# Operations


def test_a_receipt_tells_its_own_operations_and_nobody_elses():
    tally = Tally()
    for what, count in (("received", 4), ("sent", 2), ("received", 1), ("empty_receives", 3), ("management_calls", 1)):
        tally.spent(what, count)
    told = encoded(tally.receipt())["operations"]
    assert told == {
        "received": 5,
        "sent": 2,
        "renewals": 0,
        "empty_receives": 3,
        "management_calls": 1,
        "by_sbpair": 11,
    }


def test_what_is_gone_is_what_has_ended_outside_of_the_queue():
    tally = Tally()
    tally.received("q", 9)
    tally.sent("q", "orders", 3, 30)
    for bucket in BUCKETS[1:]:
        tally.ended("q", bucket)
    assert tally.gone("q") == 3 + len({"already_sent", "expired", "dead_lettered"})
    assert tally.gone("another") == 0
    tally.received("another", 2)
    assert tally.may_arrive == 3 + len({"in_doubt"}) + 2
    assert tally.sent_to() == {"orders": 3}
