"""`sbpair provision`: the table, the JSON contract, the exit codes, and Ctrl-C half way."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sbpair.emulator.entities.description import QueueDescription
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import environment

ENTITIES = """
[queues.orders]
max_delivery_count = 20
[topics.events.subscriptions.audit.rules.europe]
sql = "region = 'eu'"
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    queues: list[str]
    """Queues of the secondary, afterwards."""


async def provisioned(
    *words: str, before: Callable[[Emulator], object] = lambda _emulator: None, signal_after: str = ""
) -> Ran:
    """Run the command on an emulator; interrupt it once stderr has `signal_after`."""

    async with Emulator() as emulator:
        before(emulator)
        process = await command.start("provision", *words, env=environment(emulator, NO_COLOR="1"))
        assert process.stderr is not None
        said = ""
        while signal_after and signal_after not in said:
            line = await process.stderr.readline()
            assert line, said
            said += line.decode()
        if signal_after:
            process.send_signal(signal.SIGINT)
        code, out, err = await command.finished(process)
        queues = [queue.path for queue in emulator.namespaces["contoso-dr"].queues()]
        return Ran(code, out, said + err, queues)


@pytest.fixture
def entities(tmp_path: Path) -> Path:
    path = tmp_path / "entities.toml"
    path.write_text(ENTITIES)
    return path


async def test_without_an_entities_file_the_table_is_of_queues_alone() -> None:
    ran = await provisioned("--count", "2")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "QUEUE                            OUTCOME  NOTE",
        "contoso/x-servicebus-transfer/0  created",
        "contoso/x-servicebus-transfer/1  created",
    ]


async def test_the_plan_is_a_table_of_both_namespaces_and_nothing_is_made(entities: Path) -> None:
    ran = await provisioned("--count", "1", "--dry-run", "--entities", str(entities))
    assert (ran.code, ran.err, ran.queues) == (0, "", [])
    rows = [line.split()[:3] for line in ran.out.splitlines()]
    assert rows == [
        ["NAMESPACE", "KIND", "NAME"],
        ["contoso", "queue", "orders"],
        ["contoso", "topic", "events"],
        ["contoso", "subscription", "events/Subscriptions/audit"],
        ["contoso", "rule", "events/Subscriptions/audit/Rules/europe"],
        ["contoso-dr", "queue", "orders"],
        ["contoso-dr", "topic", "events"],
        ["contoso-dr", "subscription", "events/Subscriptions/audit"],
        ["contoso-dr", "rule", "events/Subscriptions/audit/Rules/europe"],
        ["contoso-dr", "queue", "contoso/x-servicebus-transfer/0"],
    ]


async def test_the_json_contract_names_each_entity_with_its_namespace_and_kind(entities: Path) -> None:
    def before(emulator: Emulator) -> None:
        emulator.namespaces["contoso"].create_queue("orders", QueueDescription())

    ran = await provisioned("--count", "1", "--strict", "--entities", str(entities), "-o", "json", before=before)
    printed = json.loads(ran.out)
    assert ran.code == 3
    assert printed["schema"] == "sbpair/provision/1"
    assert printed["drifted"] == [
        {
            "name": "orders",
            "reason": "MaxDeliveryCount is 10 and should be 20",
            "namespace": "contoso",
            "kind": "queue",
            "differences": [{"property": "MaxDeliveryCount", "expected": 20, "actual": 10}],
        }
    ]
    backlog = {"name": "contoso/x-servicebus-transfer/0", "namespace": "contoso-dr", "kind": "queue", "index": 0}
    assert printed["created"][-1] == backlog
    assert len(printed["created"]) == 8
    assert [printed[each] for each in ("existing", "failed", "not_tried", "would_create")] == [[], [], [], []]
    differs = "warning: queue orders of contoso differs: MaxDeliveryCount is 10 and should be 20\n"
    assert command.untimed(ran.err) == differs


async def test_an_interrupted_run_prints_what_it_had_created() -> None:
    def before(emulator: Emulator) -> None:
        emulator.faults.latency("contoso-dr", 100)

    ran = await provisioned("--count", "300", "-v", "-o", "json", before=before, signal_after="created (1 of 300)")
    printed = json.loads(ran.out)
    assert ran.code == 130
    assert {each["name"] for each in printed["created"]} == set(ran.queues)
    assert len(printed["created"]) + len(printed["not_tried"]) == 300
    assert printed["created"]
    assert printed["not_tried"]


async def test_a_refusal_half_way_reports_created_failed_and_untried_queues() -> None:
    def before(emulator: Emulator) -> None:
        path = "contoso/x-servicebus-transfer/40"
        emulator.faults.refuse_requests("contoso-dr", 403, path, method="PUT")

    ran = await provisioned("--count", "90", "-o", "json", before=before)
    printed = json.loads(ran.out)
    assert ran.code == 5
    assert {each["name"] for each in printed["created"]} == set(ran.queues)
    assert [each["index"] for each in printed["failed"]] == [40]
    assert printed["not_tried"]
