"""Memory of a proof, and of a task that skips what has an outcome: it depends on no number of messages."""

import subprocess
import sys

import pytest

from sbpair.replay.archive import LEDGER, Archive
from sbpair.replay.ledger import Entry, Key, Ledger
from sbpair.replay.run_description import save_run
from tests.replay.segments import write_segment
from tests.replay.test_archive import RUN, key

MESSAGES, STEP = (100_000, 250_000), 50_000
MAX_GROWTH = 200  # bytes a message, while buffers fill; a set of keys takes 380, and a table with counts 460

PROCESS = """
import sys
from pathlib import Path
from sbpair.replay.archive import Archive
from sbpair.replay.ledger import Ledger
from sbpair.replay.run_description import load_run
from sbpair.replay.verify import Limits, verify

archive = Archive(sys.argv[1], "r1")
run = load_run(archive)
if sys.argv[2] == "proof":
    assert verify(archive, run, Limits(part=20_000), save=True).balanced
else:
    assert Ledger(archive, run.shards).ended_keys(1)
[line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(line.split()[1])
"""


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return the peaks in KiB with each number of messages."""
    archive = Archive(str(tmp_path_factory.mktemp("archive")), RUN.id)
    save_run(archive, RUN)
    found: dict[str, list[int]] = {"proof": [], "ended keys": []}
    for number in range(0, MESSAGES[-1], STEP):
        add(archive, [key(each) for each in range(number, number + STEP)])
        if number + STEP in MESSAGES:
            for what, each in found.items():
                each.append(peak(archive, what))
    return found


def add(archive: Archive, keys: list[Key]) -> None:
    """Add messages, which have been sent."""
    write_segment(archive, f"s{keys[0][1]}", keys, [b""] * len(keys), group=5_000, shards=RUN.shards)
    Ledger(archive, RUN.shards, sync=False).write(LEDGER, 1, [Entry(each, "orders") for each in keys])


def peak(archive: Archive, what: str) -> int:
    words = [sys.executable, "-c", PROCESS, archive.url, what]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("what", ["proof", "ended keys"])
def test_memory_does_not_grow_with_the_messages(peaks: dict[str, list[int]], what: str) -> None:
    few, many = peaks[what]
    assert (many - few) * 1024 < MAX_GROWTH * (MESSAGES[1] - MESSAGES[0]), (few, many)
