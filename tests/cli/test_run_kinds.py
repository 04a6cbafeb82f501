"""Kinds of runs: the receipt, the record, its table, its page, its report, metrics and health agree on each."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sbpair.cli.page.documents import PageDocuments
from sbpair.cli.page.pair_source import PairSource
from sbpair.metrics.live_figures import LiveFigures
from sbpair.metrics.metric_names import MESSAGES
from sbpair.model.document import encoded
from sbpair.move.filter import MessageFilter
from sbpair.move.receipt import BUCKETS
from sbpair.runs.database import RunDatabase, StateOwner
from sbpair.runs.journal import message_key
from sbpair.runs.run_log import all_runs
from sbpair.runs.run_record import RemainingMessages, RunRecord
from sbpair.service.run_health import RunsHealth
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from tests.kit import command
from tests.kit.moves import peeked
from tests.syphon.worlds import World, after, world

MANY = tuple(range(60))


def runs_of(w: World, state: Path) -> list[RunRecord]:
    with RunDatabase(state, w.pair.ends) as opened:
        return all_runs(opened)


def said(w: World, state: Path, *words: str) -> str:
    """Return what `sbpair runs` prints."""
    env = command.environment(w.emulator)
    code, out, err = command.captured(["runs", *words, "--state", str(state)], env, clear=True)
    assert (code, err) == (0, "")
    return out


async def moved(w: World, state: Path, kind: str) -> Any:
    """Run a syphon of this kind. Return its result, its live run, and the exit code of the process."""
    terms: dict[str, Any] = {"live": LiveRun(), "state": state, "count_remaining": True}
    match kind:
        case "complete":
            w.strand(1, 2, 3)
        case "partial: missing destinations":
            w.strand(1)
            w.strand(*range(30), to="gone")
            terms["max_missing"] = 20
        case "partial: a filter":
            w.strand(*range(4))
            terms["where"] = MessageFilter("number < 1")
        case "stopped by a signal" | "interrupted":
            w.strand(*MANY)
            terms |= {"rate": 10.0, "once": kind == "interrupted"}
            after(w.destination().messages, "enqueue", w.stop.set)
        case "limited":
            w.strand(*range(9))
            terms["max_messages"] = 4
    return await w.run(**terms), terms["live"]


LEFT = {"messages": 5, "exact": True}
KINDS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "complete": ("done", 0, {"received": 3, "sent": 3}),
    "partial: missing destinations": (
        "partial",
        3,
        {"sent": 1, "undeliverable": 20, "remaining": {"messages": 10, "exact": True}},
    ),
    "partial: a filter": ("done", 0, {"received": 4, "sent": 1, "stayed": 3}),
    "stopped by a signal": ("stopped", 0, {}),
    "interrupted": ("stopped", 130, {}),
    "limited": ("done", 0, {"sent": 4, "remaining": LEFT}),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_all_that_show_a_run_agree_with_its_receipt(kind: str, tmp_path: Path) -> None:
    outcome, code, expected = KINDS[kind]
    async with world() as w:
        result, live = await moved(w, tmp_path, kind)
        left = len(peeked(w.backlog()))
        [run] = runs_of(w, tmp_path)
        owner = StateOwner(w.pair.ends, tmp_path)
        [found] = (await PageDocuments(PairSource(w.pair), owner).read("runs", {}))["runs"]
        heading, row = (re.split("  +", line) for line in said(w, tmp_path, "list").splitlines())
        text, report = said(w, tmp_path, "show", run.id), said(w, tmp_path, "report", run.id, "--markdown", "-")
    receipt = json.loads(json.dumps(encoded(result)))
    assert (run.outcome, run.exit_code, run.receipt) == (outcome, result.exit_code, receipt)
    ended = {"outcome": outcome, "exit_code": code, "in_doubt": 0, "doubtful_total": 0}
    assert found == found | asdict(run.counts) | ended | expected
    # What is left over is all that the backlog has, but for what stayed on purpose.
    remaining = found["remaining"]
    assert remaining == receipt["remaining"]
    assert (remaining["messages"] if remaining else 0) == left - found["stayed"]
    assert found["undeliverable"] == receipt["dead_lettered"] + receipt["expired"]
    figures, health = LiveFigures(live, {}).read(), RunsHealth({"": live}).counts()
    for bucket in ("received", *BUCKETS):
        name, count = bucket.replace("_", " "), receipt[bucket]
        assert sum(figures[MESSAGES[bucket]].values()) == count
        assert re.search(rf"^{name} +{count}$", text, re.MULTILINE)
        assert f"{count} {name}" in report
        assert f"{count} {name}" in health or bucket not in ("received", "sent")
    if remaining:
        again = f"sbpair {run.command}{' --max-missing 0' if 'missing' in kind else ''} --state"
        assert f"; {remaining['messages']} messages in the backlog\nto continue: {again}" in text
        assert f"{remaining['messages']} are left over." in report
    assert ("gone does not exist in the primary namespace" in text) == ("missing" in kind)
    cells = dict(zip(heading, row, strict=False))
    assert (cells["OUTCOME"], cells["RECEIVED"], cells["SENT"]) == (outcome, str(found["received"]), str(found["sent"]))


async def test_a_doubt_that_a_later_run_settled_is_an_alarm_no_more(tmp_path: Path) -> None:
    async with world() as w:
        w.strand(0)
        with RunStore(syphon_request(w.pair, once=True, lease=False), tmp_path, LiveRun()) as crashed:
            [held] = peeked(w.backlog())
            facts = (w.backlog().path, held.sequence_number, held.enqueued_at_ms, "m0")
            crashed.journal.note_sending([[message_key("contoso-dr", facts)]], "orders")
            await crashed.journal.flush()
        [run] = runs_of(w, tmp_path)
        assert (run.outcome, run.counts.in_doubt, run.counts.doubtful_total) == ("crashed", 1, 1)
        assert (run.counts.remaining, run.counts.undeliverable) == (RemainingMessages(0, exact=False), None)
        text = said(w, tmp_path, "show", run.id)
        assert f"to continue: sbpair syphon --once --state {tmp_path}\nin doubt: m0 of" in text
        result = await w.run(state=tmp_path)
        later, run = runs_of(w, tmp_path)
        text = said(w, tmp_path, "show", run.id)
    assert (run.outcome, run.counts.in_doubt, run.counts.doubtful_total) == ("crashed", 0, 1)
    assert [each.message_id for each in run.doubtful()] == ["m0"]
    assert "in doubt: m0 of" not in text
    assert (later.counts.in_doubt, later.counts.doubtful_total) == (0, result.receipt.doubtful_total) == (0, 1)
