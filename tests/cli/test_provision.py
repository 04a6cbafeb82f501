"""`sbpair provision` that ends half way: by Ctrl-C, and by a refusal."""

import json
import signal

from sbpair.testing import Emulator
from tests.kit.command import CommandLines, environment, finished


def queues(emulator: Emulator) -> set[str]:
    return {queue.path for queue in emulator.namespaces["contoso-dr"].queues()}


async def test_an_interrupted_run_prints_what_it_had_created() -> None:
    async with Emulator() as emulator:
        emulator.faults.latency("contoso-dr", 100)
        commands = CommandLines(environment(emulator))
        process = await commands.start("provision", "--count", "300", "-v", "-o", "json")
        assert process.stderr is not None
        while b"created (1 of 300)" not in await process.stderr.readline():
            assert process.returncode is None
        process.send_signal(signal.SIGINT)
        code, out, _ = await finished(process)
        printed = json.loads(out)
        assert code == 130
        assert {each["name"] for each in printed["created"]} == queues(emulator) != set()
        assert len(printed["created"]) + len(printed["not_tried"]) == 300
        assert printed["not_tried"]


async def test_a_refusal_half_way_reports_created_failed_and_untried_queues() -> None:
    async with Emulator() as emulator:
        emulator.faults.refuse_requests("contoso-dr", 403, "contoso/x-servicebus-transfer/40", method="PUT")
        code, out, err = await CommandLines(environment(emulator)).run("provision", "--count", "90", "-o", "json")
        printed = json.loads(out)
        assert code == 5
        assert {each["name"] for each in printed["created"]} == queues(emulator)
        assert [each["index"] for each in printed["failed"]] == [40]
        assert "warning: contoso/x-servicebus-transfer/40 was not created: " in err
        assert printed["not_tried"]
