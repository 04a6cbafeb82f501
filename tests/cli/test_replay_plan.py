"""`sbpair replay plan`: figures that add up, no side effects, and no Java."""

import json
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import Aliases, queue_path
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Journal
from sbpair.testing import Emulator
from tests.cli.test_replay import sbpair
from tests.kit import command
from tests.kit.command import environment
from tests.kit.stranded import put, stranded

FATES = ("sent", "already_sent", "deduplicated", "expired", "quarantined", "unsent", "deferred", "scheduled")


MESSAGES = (
    [(0, f"m{number}", Aliases("orders")) for number in range(3)]
    + [(1, f"m{number}", Aliases("invoices")) for number in range(2)]
    + [(1, "m0", Aliases("ORDERS")), (1, "late", Aliases("orders", None, 1)), (1, "nowhere", None)]
)


async def plan(
    *words: str, primary: tuple[str, ...] = ("orders", "invoices"), state: Path | None = None, queues: int = 2
) -> tuple[int, str, str]:
    """Preview a backlog of two queues in a process without Java, and check that it is unchanged.

    If given, `state` gets a journal that has the first message of each queue.
    """

    async with Emulator() as emulator:
        for name in primary:
            emulator.namespaces["contoso"].create_queue(name)
        backlog = [
            emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", each)) for each in range(queues)
        ]
        for index, name, aliases in MESSAGES:
            put(backlog[index], stranded(name, aliases))
        if state is not None:
            write_journal(state, emulator, [(queue.path, queue.messages.peek(0, 1)[0]) for queue in backlog])
        env = environment(emulator, NO_COLOR="1", PATH="/nowhere", JAVA_HOME="/nowhere")
        result = await command.finished(await command.start("replay", "plan", *words, env=env))
        seen = [each for queue in backlog for each in queue.messages.peek(0, 100)]
        assert [each.delivery_count for each in seen] == [0] * len(MESSAGES)
        assert sum(queue.counts().active for queue in backlog) == len(MESSAGES)
        return result


def write_journal(directory: Path, emulator: Emulator, known: list[tuple[str, Any]]) -> None:
    ends = (
        endpoint_from_connection_string(each.connection_string, name=each.name) for each in emulator.ready.namespaces
    )
    with RunDatabase(directory, Pair("orders", *ends)) as state:
        journal = Journal(state, run="before")
        for path, message in known:
            key = ("contoso-dr", path.lower(), message.sequence_number, message.enqueued_at_ms, "m0")
            journal.note_accepted(journal.note_sending([[key]], "orders"))
        journal.close()


async def plan_document(*words: str, **said: Any) -> tuple[int, dict[str, Any], str]:
    code, out, err = await plan("--output", "json", *words, **said)
    document = json.loads(out)
    for part in ("queues", "destinations", "flows"):
        for each in document[part]:
            assert each["messages"] == sum(each[fate] for fate in FATES)
    assert document["messages"] == sum(document[fate] for fate in FATES)
    return code, document, err


@pytest.mark.parametrize(
    ("words", "fates"),
    [
        ((), {"sent": 7, "quarantined": 1}),
        (("--dedup", "message-id", "--ttl", "remaining"), {"sent": 5, "deduplicated": 1, "expired": 1}),
        (("--destination", "Orders", "--queue", "1"), {"sent": 2, "unsent": 3}),
    ],
)
async def test_options_count_what_they_exclude(words: tuple[str, ...], fates: dict[str, int]) -> None:
    code, document, _err = await plan_document(*words)
    assert (code, document["schema"]) == (3, "sbpair/replay-plan/1")
    assert {fate: document[fate] for fate in fates} == fates
    assert document["duplicates"] == (0 if "--queue" in words else 1)
    by_queue = {each["queue"]: each["messages"] for each in document["queues"]}
    both = {queue_path("contoso", 0): 3, queue_path("contoso", 1): 5}
    assert by_queue == ({queue_path("contoso", 1): 5} if "--queue" in words else both)
    assert document["limits"] == {"rate": None, "primary_credits": 1000.0, "secondary_credits": 1000.0}
    assert document["seconds"] == pytest.approx((document["messages"] + document["sent"]) / 1000)


async def test_messages_in_the_journal_would_not_be_sent_again(tmp_path: Path) -> None:
    _code, document, _err = await plan_document("--state", str(tmp_path), state=tmp_path)
    assert (document["already_sent"], document["sent"]) == (2, 5)


async def test_the_table_names_a_missing_destination() -> None:
    code, out, err = await plan("--dead-letters", primary=("orders",))
    assert code == 3
    assert "quarantined" in out
    assert "deferred" in out
    assert "(--dedup message-id): 1" in out
    assert "a run would archive everything and send nothing: the primary lacks destinations of 2 messages" in err
    assert "0/$deadletterqueue" not in out  # there is nothing in it


@pytest.mark.parametrize(("queues", "rest"), [(2, ""), (5, ", contoso/x-servicebus-transfer/2 and 2 more")])
async def test_an_unknown_queue_is_refused(queues: int, rest: str) -> None:
    code, out, err = await plan("--queue", "7", queues=queues)
    assert (code, out) == (2, "")
    assert err.splitlines()[-2:] == [
        "error: --queue 7: contoso-dr has no such backlog queue",
        f"hint: it has contoso/x-servicebus-transfer/0, contoso/x-servicebus-transfer/1{rest}",
    ]


def test_a_broken_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("nonsense")
    done = sbpair("plan", "--state", str(tmp_path))
    assert done.returncode == 4
    assert "state.db" in done.stderr
