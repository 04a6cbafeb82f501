"""`sbpair provision` that ends half way: by Ctrl-C, and by a refusal."""

import json
import signal
from collections.abc import Callable
from typing import NamedTuple

from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import environment


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
