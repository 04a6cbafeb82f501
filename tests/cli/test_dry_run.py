"""`sbpair syphon --dry-run`: figures that add up, a table, the exit code, nothing moved."""

import json
import re
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.cli.render.forecast import size
from sbpair.cli.render.screen import spoken
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import environment
from tests.kit.stranded import put, stranded

FATES = ("sent", "dead_lettered", "expired", "deferred", "scheduled")


async def dry_run(*words: str, lost: int = 0, found: int = 5, ahead_ms: int = 0) -> tuple[int, str, str]:
    """Preview a backlog; `found` messages have a destination in the primary, `lost` ones have none."""

    async with Emulator() as emulator:
        emulator.namespaces["contoso"].create_queue("orders")
        backlog = emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", 0))
        emulator.advance(ahead_ms)
        for number in range(found + lost):
            put(backlog, stranded(f"m\x1b{number}", "orders" if number < found else "nowhere"))
        process = await command.start("syphon", "--dry-run", *words, env=environment(emulator, NO_COLOR="1"))
        result = await command.finished(process)
        assert backlog.counts().active == found + lost
        return result


def adds_up(sums: dict[str, Any]) -> bool:
    return sums["messages"] == sum(sums[fate] for fate in FATES)


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (2, 3)])
async def test_the_document_adds_up_and_the_exit_code_reveals_dead_letters(lost: int, code: int) -> None:
    done, out, err = await dry_run("--output", "json", lost=lost)
    printed = json.loads(out)
    assert (done, err, printed["schema"]) == (code, "", "sbpair/syphon-preview/1")
    assert (printed["messages"], printed["sent"], printed["dead_lettered"]) == (5 + lost, 5, lost)
    for part in ("queues", "destinations", "flows"):
        assert all(adds_up(each) for each in printed[part])
        assert sum(each["messages"] for each in printed[part]) == printed["messages"]
        assert sum(each["bytes"] for each in printed[part]) == printed["bytes"]
    assert sum(each["messages"] for each in printed["dead_letters"]) == lost
    assert printed["limits"] == {"rate": None, "primary_credits": 500.0, "secondary_credits": 500.0}
    assert printed["tiers"] == {"primary": "Standard", "secondary": "Standard"}
    assert printed["operations"]["by_sbpair"] == 5 * 3 + lost * 2 + 2
    assert printed["cost"]["by_sbpair"]["minimum"] <= printed["cost"]["by_sbpair"]["maximum"]
    assert 0 <= printed["newest_seconds"] <= printed["oldest_seconds"]


async def test_a_clock_that_is_behind_is_noted() -> None:
    _, out, err = await dry_run("--output", "json", ahead_ms=1_200_000)
    (note,) = json.loads(out)["notes"]
    assert re.fullmatch(
        r"the age of messages is unknown: this machine's clock is 1[12]\d\d s behind that of contoso-dr", note
    )
    assert note in err


async def test_the_table_tells_the_same_without_what_a_terminal_would_obey() -> None:
    done, out, _ = await dry_run("--rate", "30/m", "--ttl", "remaining", lost=1)
    assert done == 3
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "peeked 6" in lines
    assert "sent 5" in lines
    assert "dead lettered 1" in lines
    assert any(line.startswith("DestinationNotFound: 1 message (m\ufffd5): ") for line in lines)
    assert any(line.startswith("time: at least 10s, at 0.5 messages a second, 500 credits") for line in lines)
    assert any(
        line.startswith("cost: 19 operations of sbpair, 0.00 to under 0.01 USD at the prices of") for line in lines
    )
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.6, "1s"), (59.4, "59s"), (60, "1m"), (90, "1m 30s"), (3_605, "1h 5s"), (93_784, "1d 2h")],
)
def test_a_time_in_words(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KB"), (5 * 2**20, "5.0 MB"), (2**40, "1.0 TB"), (2**50, "1024.0 TB")],
)
def test_a_size_in_words(number: int, text: str) -> None:
    assert size(number) == text
