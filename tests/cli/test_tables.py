"""Result tables on a narrow terminal and off one: golden screens, and the rules of their layout at all widths."""

import io
import os
import re
import sys
import time
from collections import Counter
from contextlib import ExitStack, nullcontext, redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbpair.backlog import queue_path
from sbpair.cli.commands.entities import ListedEntity
from sbpair.cli.render.forecast import size
from sbpair.cli.render.messages import message_table
from sbpair.cli.render.screen import shortened, spoken
from sbpair.cli.render.table import Layout, columns, cut
from sbpair.doctor.check import failed, note, ok, unknown
from sbpair.errors import AccessError, EntityMissing
from sbpair.failover.ping_on_request import Health, PingResult
from sbpair.management.audit_findings import Audit, DestinationSummary, QueueStatus, ReasonCount
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.cost import Operations, estimate
from sbpair.model.pair import Endpoint
from sbpair.model.queues import AuditedQueue, Counts, Utilisation
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.move.message.route import TimeToLive
from sbpair.move.receipt import NamedMessage, Receipt
from sbpair.runs.journal import Doubt
from sbpair.runs.run_record import RemainingMessages, RunOutcome, RunRecord
from sbpair.status import DestinationStatus, SideStatus, Status
from sbpair.syphon.forecast import DeadLetterGroup, FlowStats, Forecast
from sbpair.syphon.run_limits import EffectiveLimits, EndTiers
from sbpair.syphon.run_result import SyphonResult
from tests.kit.command import run_here
from tests.kit.golden import check_golden

SCREENS = Path(__file__).parent / "drawings" / "tables"
WIDTHS = (80, 100, 160)
LONG = "billing/invoices/emea/2026/a-queue-whose-name-takes-most-of-a-line"
GB = 1024**3
KEY = "Endpoint=sb://{}.servicebus.windows.net;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=key"
PATHS = [queue_path("contoso", each) for each in (*range(5), 12)]


def endpoint(name: str) -> Endpoint:
    return endpoint_from_connection_string(KEY.format(name))


STATUS = Status(
    SideStatus(endpoint("contoso"), 0.1, AccessError("contoso refuses the key Root", hint="check the key")),
    SideStatus(endpoint("contoso-dr"), 0.1),
    (
        QueueStatus(PATHS[0], 8_000, 0, oldest_seconds=7_260.0, scheduled=0),
        QueueStatus(PATHS[1], 0, 500, scheduled=3),
        QueueStatus(PATHS[2], 5, 558, oldest_seconds=61.0, scheduled=0),
        QueueStatus(PATHS[4], note="it does not exist", missing=True),
        QueueStatus(PATHS[5], 0, 0, note="extra: beyond the 5 that were asked for", scheduled=0),
    ),
    (
        DestinationStatus(PingResult("orders", Health.UP, 0.1), 250, exact=False),
        DestinationStatus(PingResult(LONG, Health.UP, 0.1), 3, exact=False),
        DestinationStatus(PingResult("gone", Health.BROKEN, 0.1, EntityMissing("no such entity")), 0, exact=False),
    ),
)


def audited(path: str, outcome: Outcome, reason: str = "", **found: Any) -> ReportItem[AuditedQueue]:
    return ReportItem(path, outcome, reason, AuditedQueue(0, **found))


AUDIT = Audit(
    (
        audited(
            PATHS[0],
            Outcome.OK,
            counts=Counts(8_000, 0, 0, 8_000),
            fill=Utilisation(5 * GB, 4 * GB, peeked=1_000, oldest_seconds=7_260.0, bytes_per_second=1e6),
        ),
        audited(PATHS[1], Outcome.OK, counts=Counts(0, 500, 3, 503), fill=Utilisation(5 * GB, GB, complete=True)),
        audited(PATHS[2], Outcome.DRIFTED, "LockDuration is PT30S, expected PT1M", counts=Counts(5, 558, 0, 563)),
        audited(PATHS[4], Outcome.MISSING, "it does not exist"),
        audited(PATHS[5], Outcome.EXTRA, "beyond the 5 that were asked for", counts=Counts()),
        audited(queue_path("fabrikam", 0), Outcome.FOREIGN, "a backlog queue of fabrikam", counts=Counts()),
    ),
    reasons=(ReasonCount("TTLExpiredException", 1_050), ReasonCount("DestinationNotFound", 8)),
    destinations=(
        DestinationSummary("", 2, exact=False),
        DestinationSummary(LONG, 600, found=True, topic=False, detects_duplicates=True, exact=False),
        DestinationSummary("gone", 98, found=False, reason="contoso has no such queue or topic", exact=False),
        DestinationSummary("orders", 300, found=True, topic=True, detects_duplicates=False, exact=False),
    ),
    complete=False,
)
RECEIPT = {
    "received": 20_000,
    "sent": 19_000,
    "dead_lettered": 1_000,
    "queues": {path: {"received": 4_000, "sent": 3_800, "dead_lettered": 200} for path in PATHS[:5]},
    "destinations": {"orders": 18_000, LONG: 1_000},
    "operations": {"by_sbpair": 60_012, "received": 40_000, "sent": 20_000, "empty_receives": 7, "management_calls": 5},
}
DOUBTS = {Doubt(f"r{at}", PATHS[0], at, f"a-message-id-{at}", LONG): not at for at in range(2)}
RUNS = [
    RunRecord(
        "261122-175236-znkq", "syphon --watch", 1_795_000_000_000, None, RunOutcome.CRASHED, None, "", None, {}, DOUBTS
    ),
    RunRecord(
        "261122-101500-k86c",
        "syphon --once",
        1_794_990_000_000,
        1_794_990_107_600,
        RunOutcome.DONE,
        3,
        "",
        RECEIPT,
        {},
        DOUBTS,
    ),
]
GONE = "queue or topic 'gone' does not exist in the primary namespace"
MOVED = SyphonResult(
    Receipt(
        received=20_000,
        sent=19_000,
        dead_lettered=20,
        released=980,
        distinct=20_000,
        queues=RECEIPT["queues"],  # type: ignore[arg-type]
        destinations=RECEIPT["destinations"],  # type: ignore[arg-type]
        dead_letters=tuple(NamedMessage(PATHS[0], at, f"m{at}", "gone", GONE) for at in range(20)),
    ),
    (),
    107.6,
    stopped=False,
    run="261122-101500-k86c",
    remaining=RemainingMessages(980, exact=True),
)
NOW_MS = 1_795_000_000_000
FORECAST = Forecast(
    tuple(PATHS[:2]),
    (
        FlowStats(PATHS[0], "orders", 8_000, 1_648_000, NOW_MS - 7_260_000, NOW_MS, outcomes=Counter(sent=8_000)),
        FlowStats(PATHS[1], LONG, 90, 18_540, NOW_MS, NOW_MS, outcomes=Counter(sent=90)),
        FlowStats(PATHS[1], "gone", 2, 412, NOW_MS, NOW_MS, outcomes=Counter(dead_lettered=2)),
    ),
    (DeadLetterGroup("DestinationNotFound", GONE, 2, [NamedMessage(PATHS[1], 7, "m7", "gone", GONE)]),),
    {},
    EffectiveLimits(None, 500.0, 500.0),
    16.2,
    estimate(Operations(received=16_184, sent=8_090, delivered=16_180), secondary="Standard", primary="Standard"),
    EndTiers("Standard", "Standard"),
    TimeToLive.ORIGINAL,
    NOW_MS,
)
DIAGNOSIS = Report(
    (
        ok("primary.dns", "10.0.0.4"),
        ok("primary.tcp", "10.0.0.4:5671 accepts connections"),
        failed(
            "secondary.sign_in",
            "contoso-dr refuses the key Root, which was accepted yesterday",
            "check SBPAIR_SECONDARY_CONNECTION_STRING: the key may have been changed or replaced",
            5,
        ),
        unknown("secondary.send", "unknown until secondary.sign_in is ok"),
        note("clock", "this machine is 20 min behind", "set its clock"),
        ok("python", "3.11.7 on Linux"),
        ok("secondary.dns", "10.0.0.5"),
    )
)


def returning(found: Any) -> Any:
    async def stand_in(*_arguments: Any, **_options: Any) -> Any:
        return found

    return stand_in


FORWARDING = (5, 4 * GB, 0.8, "SendDisabled", None, "orders", "")
ENTITIES = [
    ListedEntity(name, "primary", kind, path, Counts(8_000, 5, 3, 8_008), *FORWARDING)
    for name, kind, path in (("contoso", "queue", LONG), ("contoso-dr", "topic", "orders"))
]
ANSWERS = returning(SideStatus(endpoint("contoso"), 0.1))
CLOCK = SimpleNamespace(localtime=time.gmtime, strftime=lambda *_: "02:10 UTC")

# What a command prints as one table and nothing else is in `sessions/` alone.
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "status": (["status"], {"sbpair.status.read_status": returning(STATUS), "sbpair.cli.render.waiting.time": CLOCK}),
    "audit": (["audit"], {"sbpair.management.auditing.audit": returning(AUDIT), "sbpair.status.read_side": ANSWERS}),
    "runs-list": (["runs", "list"], {"sbpair.runs.run_log.all_runs": lambda _state: RUNS}),
    "runs-show": (["runs", "show", "261122"], {"sbpair.runs.run_log.find_run": lambda _state, _start: RUNS[1]}),
    "syphon": (["syphon", "--once"], {"sbpair.syphon.runner.run": returning(MOVED)}),
    "syphon-dry-run": (["syphon", "--dry-run"], {"sbpair.syphon.preview.make_forecast": returning(FORECAST)}),
    "entities": (["entities"], {"sbpair.cli.commands.entities._read_all": returning(ENTITIES)}),
    "doctor": (["doctor"], {"sbpair.doctor.diagnose": returning(DIAGNOSIS)}),
}
ENVIRON = {
    "HOME": "/home/me",
    "SBPAIR_PRIMARY_CONNECTION_STRING": KEY.format("contoso"),
    "SBPAIR_SECONDARY_CONNECTION_STRING": KEY.format("contoso-dr"),
}


def printed(name: str, layout: Layout, *more: str) -> str:
    """Return what a command prints to stdout."""
    words, stand_ins = CASES[name]
    out = io.StringIO()
    with ExitStack() as stack:
        for target, stand_in in stand_ins.items():
            stack.enter_context(patch(target, stand_in))
        stack.enter_context(patch("sbpair.runs.database.state_if_any", lambda *_arguments: nullcontext(object())))
        stack.enter_context(patch("sbpair.cli.render.table.stdout_layout", lambda: layout))
        stack.enter_context(patch.dict(os.environ, ENVIRON, clear=True))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(io.StringIO()))
        run_here([*words, *more])
    return out.getvalue()


def screens(name: str) -> str:
    layouts = {"80 columns": Layout(80), "off a terminal": Layout()}
    return "\n".join(f"== {title}\n{printed(name, layout)}" for title, layout in layouts.items())


@pytest.mark.parametrize("name", CASES)
def test_screens_of_a_result_are_as_they_were_last_agreed(name: str) -> None:
    check_golden(SCREENS / f"{name}.txt", screens(name))


@pytest.mark.parametrize(("name", "width"), [*product(CASES, WIDTHS), ("entities", 40)])
def test_a_result_fits_its_terminal_and_breaks_no_word(name: str, width: int) -> None:
    found, words = printed(name, Layout(width)), set(printed(name, Layout()).split())
    # A command that is to be pasted stays on one line.
    assert [line for line in found.splitlines() if len(line) > width and "-> " not in line] == []
    title = re.search("^backlog queues (.*)…$", found, re.MULTILINE)
    whole = found.replace("…/", title[1]) if title else found
    assert {word for word in whole.split() if "…" not in word} - words <= {"backlog", "queues"}


def test_doctor_folds_nothing_with_verbose() -> None:
    lines = printed("doctor", Layout(), "-v").splitlines()
    checks = [line for line in lines[1:-2] if not line.startswith("  -> ")]
    assert [line[19:].split()[0] for line in checks] == ["failed", "unknown", "note", *["ok"] * 5]


def test_there_is_no_screen_too_many() -> None:
    assert {path.stem for path in SCREENS.iterdir()} == CASES.keys()


def test_shown_dead_letters_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpair.cli.render.table.stdout_layout", lambda: Layout(80))
    ids = "5843cdde-0384-4cf6-ab89-85926a0d4412", "3fd7f13b-e082-46a0-9cbb-0cbb5076d0c7"
    entries = [
        {
            "from": "secondary",
            "state": "active",
            "destination": "sales/eu",
            "scheduled_at": None,
            "expires_at": None,
            "size": 505,
            "queue": queue,
            "sequence_number": number,
            "enqueued_at": f"2026-11-22T10:15:0{at}.250000+00:00",
            "message_id": ids[at],
            "dead_letter_reason": "DestinationNotFound",
            "dead_letter_description": "queue or topic 'sales/eu' does not exist in the primary namespace",
        }
        for at, (queue, number) in enumerate(zip(PATHS, (1, 72057595), strict=False))
    ]
    check_golden(SCREENS.parent / "dead-letters.txt", "".join(f"{line}\n" for line in message_table(entries)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.6, "1s"),
        (59.4, "59s"),
        (60, "1m"),
        (90, "1m 30s"),
        (3_605, "1h 5s"),
        (93_784, "1d 2h"),
        (8_648_000, "100d"),
    ],
)
def test_a_time_in_words(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KB"), (5 * 2**20, "5.0 MB"), (2**40, "1.0 TB"), (2**50, "1024.0 TB")],
)
def test_a_size_in_words(number: int, text: str) -> None:
    assert size(number) == text


def test_outcomes_are_coloured_by_their_meaning_and_only_with_colours() -> None:
    rows = [("NAME", "OUTCOME", "DEAD"), ("a", "ok", 0), ("b", "missing", 3), ("c", "drifted", 0), ("d", "foreign", 0)]
    plain, coloured = columns(rows, layout=Layout(80)), columns(rows, layout=Layout(80, colour=True))
    assert [re.findall("\x1b\\[(3.)m(\\w+)\x1b", line) for line in coloured] == [
        [],
        [("32", "ok")],
        [("31", "missing"), ("33", "3")],
        [("33", "drifted")],
        [],
    ]
    assert [re.sub("\x1b\\[[0-9]*m", "", line) for line in coloured] == plain


@pytest.mark.parametrize(
    ("environ", "terminal", "layout"),
    [
        ({"TERM": "xterm"}, True, Layout(72, colour=True)),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, Layout(72)),
        ({"TERM": "dumb"}, True, Layout(72)),
        ({"TERM": "xterm"}, False, Layout()),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "1"}, False, Layout(colour=True)),
        ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True, Layout(72, colour=True)),
        ({"CLICOLOR_FORCE": "0"}, False, Layout()),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False, Layout()),
    ],
)
def test_colours_need_a_terminal_and_no_wish_to_the_contrary(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], terminal: bool, layout: Layout
) -> None:
    from sbpair.cli.render.table import stdout_layout

    for name in ("NO_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environ, "COLUMNS": "72"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert stdout_layout() == layout


cells = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60) | st.integers(0, 10**9)


@given(st.lists(st.tuples(cells, cells, st.lists(cells, max_size=20)), max_size=20), st.integers(60, 200))
@example([("~" + 19 * "0", "", ["~" + 19 * "0", 11 * "0"])], 60)
def test_any_rows_fit_a_terminal_of_60_columns(rows: list[Any], width: int) -> None:
    table = [("NAME", "QUEUE", "NOTE"), *((name, queue, " ".join(map(str, note))) for name, queue, note in rows)]
    assert all(len(line) <= width for line in columns(table, layout=Layout(width)))


@given(st.text(st.characters(exclude_characters="…")), st.integers(1, 80))
def test_a_long_text_is_cut_in_its_middle(text: str, width: int) -> None:
    head, mark, tail = cut(text, width).partition("…")
    assert (bool(mark), len(head + mark + tail)) == (len(text) > width, min(len(text), width))
    assert (text.startswith(head), text.endswith(tail)) == (True, True)
    assert not mark or len(tail) - len(head) in (0, 1)


@given(st.lists(st.integers()), st.integers(3, 30))
def test_too_many_lines_keep_the_first_and_the_last(lines: list[int], limit: int) -> None:
    found = shortened(list(map(str, lines)), limit)
    assert len(found) <= limit
    assert found[-1:] == [str(each) for each in lines[-1:]]
