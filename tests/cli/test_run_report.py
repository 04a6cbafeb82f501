"""`sbpair runs report`: content, curves, hostile texts, files written as a whole or not at all, and real runs."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sbpair.cli.report.plots import NARROW, WIDE, Plot, draw, plots_of, timeline_rows, value_at
from sbpair.cli.report.run_report import RunReport, code, render_html, render_markdown, report_of
from sbpair.model.document import encoded
from sbpair.move.receipt import BackingOff, NamedMessage, RampRecord, RampState, RampStep, Tally
from sbpair.replay.archive import Archive, files_of
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import MAX_DESTINATIONS, Figures, RunEntry, Sample, find_run, timeline_of
from tests.kit import command
from tests.runs.states import PAIR

START = 1_795_425_632_000
QUEUE = "contoso/x-servicebus-transfer/0"
HOSTILE = "<script>alert(1)</script>\u202e|`</code>@octocat`\n# x \\| [a](http://evil.example)"


class Page(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "h2" and data.strip():
            self.headings.append(data)


def moved(messages: int, *, hostile: str = "orders") -> Tally:
    tally = Tally()
    tally.received(QUEUE, messages + 1)
    tally.sent(QUEUE, hostile, messages, 10 * messages)
    tally.dead_lettered(NamedMessage(QUEUE, 1, hostile, hostile, hostile), hostile)
    tally.doubtful(NamedMessage(QUEUE, 2, hostile, hostile, hostile))
    tally.backing_off(QUEUE, [BackingOff(hostile, hostile, hostile, 1)])
    tally.discarded[hostile] = 3
    return tally


def report(directory: Path, *, samples: int = 20, ended: bool = True, tally: Tally | None = None) -> RunReport:
    """Return the report of a run with these samples; one that has not `ended` has crashed."""
    now, tally = [START], tally or moved(100)
    with RunDatabase(directory, PAIR.ends) as state:
        run = RunEntry(state, "syphon --once", clock_ms=lambda: now[0])
        run.describe({"primary": "contoso.example", "secondary": "contoso-dr.example", "primary_tier": "Premium"})
        run.record(encoded(tally.receipt()))
        sent = tally.sent_to()
        for number in range(samples):
            now[0] = START + 2_000 * number
            part = {name: count * number // samples for name, count in sent.items()}
            run.sample(Figures({"received": number, "sent": number}, part, 100 - number, START - 60_000))
        if ended:
            run.finish(encoded(tally.receipt()), 3)
        run.close()
        found = find_run(state, run.id)
        return report_of(found, timeline_of(state, run.id), now_ms=now[0], version="0.1.0")


def test_a_page_has_its_sections_and_loads_nothing(tmp_path: Path) -> None:
    text = render_html(report(tmp_path))
    page = Page(text)
    assert page.headings[:3] == ["Timeline", "Destinations", "Age of the oldest message"]
    assert {
        "Dead letters",
        "Destinations that took no more",
        "Topics that discard messages",
        "Possible duplicates",
    } <= set(page.headings)
    assert "discarded: 3 of 100 for orders match no subscription" in text
    assert '<td role="cell" data-label="description">orders</td>' in text
    assert page.tags.count("svg") == 6
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert "default-src 'none'" in text
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    body = text[text.index("</style>") :]
    assert re.findall(r"#[0-9a-f]{6}\b", body) == []  # all colours are the page's


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("hours", [0.01, 3.0, 24.0 * 400])
def test_a_drawing_stays_within_its_frame(hours: float, size: tuple[int, int]) -> None:
    end = START + int(3_600_000 * hours)
    some = [(START + (end - START) * at // 9, {"a": at * 10**6, "b": at // 5}, at % 4) for at in range(10)]
    samples = [
        Sample(at_ms, Figures({"received": 9, "sent": 9}, sent, None if gap == 1 else gap, START - 9))
        for at_ms, sent, gap in some
    ]
    for plot in plots_of(START, end, samples):
        drawn = draw(plot, size)
        paths = re.findall(' d="([^"]+)"', drawn)
        places = [pair.split() for path in paths if "H" not in path for pair in re.split("[MLZ]", path) if pair]
        assert all(0 <= float(x) <= size[0] and 0 <= float(y) <= size[1] for x, y in places)
        times = re.findall('middle">([^<]+)</text>', drawn)
        assert 2 <= len(times) <= 9
        assert len({*times}) == len(times)


def test_hostile_texts_do_not_become_markup(tmp_path: Path) -> None:
    made = report(tmp_path, tally=moved(9, hostile=HOSTILE))
    page, markdown = Page(render_html(made)), render_markdown(made)
    assert "script" not in page.tags
    assert "\u202e" not in markdown
    lines = [line for line in markdown.splitlines() if "octocat" in line]
    assert lines
    for line in lines:
        assert "<script" not in line
        assert "@" not in line
        assert "http:" not in line
        assert line.startswith(("| ", "<code>"))


@pytest.mark.parametrize("text", ["plain", "a|b", "`", "a\\", " x ", "<b>", "@team", "x\\|y"])
def test_code_in_markdown_holds_no_bare_mark(text: str) -> None:
    found = code(text)
    inside = found[1:-1] if found.startswith("`") else re.sub(r"&#\d+;|</?code>", "", found)
    assert not set("`|\\") & set(inside)


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_a_run_without_a_timeline_has_no_plots(tmp_path: Path, samples: int) -> None:
    made = report(tmp_path, samples=samples)
    assert "svg" not in Page(render_html(made)).tags
    assert "# `sbpair syphon --once`: partial" in render_markdown(made)


def test_an_empty_run_says_that_nothing_was_sent(tmp_path: Path) -> None:
    text = render_markdown(report(tmp_path, tally=Tally()))
    assert "No message was sent." in text
    assert "**0 received = " in text


@pytest.mark.parametrize(
    ("ended", "outcome", "verdict", "last"),
    [(False, "crashed", "open", ("held", 5)), (True, "partial", "bad", ("skipped", 0))],
)
def test_counts_that_do_not_add_up_are_held_by_a_crashed_run_alone(
    tmp_path: Path, ended: bool, outcome: str, verdict: str, last: tuple[str, int]
) -> None:
    tally = moved(100)
    tally.received(QUEUE, 5)
    made = report(tmp_path, ended=ended, tally=tally)
    assert made.identity is not None
    assert (made.outcome, made.identity.verdict, made.identity.parts[-1]) == (outcome, verdict, last)
    assert outcome in render_html(made)


def test_a_ramp_has_its_steps_and_what_came_back(tmp_path: Path) -> None:
    tally, back = moved(100), tuple(NamedMessage("orders", each, f"b{each}", "orders", "Poison") for each in range(8))
    steps = (RampStep(10, 10, 30.0, 0), RampStep(1000, 100, 12.0, 2))
    tally.ramp = RampRecord(
        (10, 1000, 5000), 30.0, RampState.STOPPED, steps, back, came_back_total=11, other_dead_letters=3
    )
    text = render_markdown(report(tmp_path, tally=tally)).partition("## Ramp\n")[2].partition("\n## ")[0]
    assert "Messages came back as dead letters" in text
    assert "3 other dead letters came to the primary" in text
    assert "| `up to 1 000` | 100 | `12s` | 2 |" in text
    assert "| `up to 5 000` | `-` | `-` | `-` |" in text
    assert "| `b4` | `orders` | `orders` | `Poison` |\n\nand 6 more" in text
    assert "## Ramp" not in render_markdown(report(tmp_path / "other"))


def test_a_replay_has_its_equation_and_checksums(tmp_path: Path) -> None:
    with RunDatabase(tmp_path / "state", PAIR.ends) as state:
        run = RunEntry(state, "replay run")
        archive = Archive(str(tmp_path / "archive"), run.id)
        archive.create()
        for number in range(3):
            archive.write(f"ledger/{number}/x.parquet", bytes([number]))
        proof = {"mode": "archive", "archived": 3, "acknowledged": 3, "archive": str(tmp_path / "archive")}
        run.finish(proof, 0)
        run.close()
        found = find_run(state, run.id)
    files = files_of(archive)
    text = render_markdown(report_of(found, [], now_ms=START, version="0.1.0", archive=files))
    assert "**3 archived = 3 acknowledged + " in text
    [ledger] = files.directories
    shell = "find ledger -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(["sh", "-c", shell], cwd=archive.root, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == ledger.sha256
    assert str(ledger.sha256) in text


def test_a_page_of_many_destinations_and_messages_stays_below_a_megabyte(tmp_path: Path) -> None:
    tally = Tally()
    for number in range(3_000):
        tally.received(QUEUE, 2)
        tally.sent(QUEUE, f"destination-{number}", 1, 100)
        tally.dead_lettered(NamedMessage(QUEUE, number, "m" * 128, "gone", "r" * 500), "DestinationNotFound")
    assert len(render_html(report(tmp_path, samples=1_900, tally=tally)).encode()) < 1_000_000


# The command


ENVIRONMENT = {"SBPAIR_PRIMARY_NAMESPACE": "contoso.example", "SBPAIR_SECONDARY_NAMESPACE": "contoso-dr.example"}


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = command.environment(None, **ENVIRONMENT)
    return command.run("runs", "report", *words, "--state", str(directory), env=env)


def test_files_are_replaced_and_named_in_json(tmp_path: Path) -> None:
    made = report(tmp_path / "state")
    (tmp_path / "r.html").write_text("before")
    names = ["--html", str(tmp_path / "r.html"), "--markdown", str(tmp_path / "r.md")]
    done = run(tmp_path / "state", made.run, *names, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [Path(each["path"]).stat().st_size for each in document["files"]] == [
        each["bytes"] for each in document["files"]
    ]
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.md", "state"]
    done = run(tmp_path / "state", made.run, "--markdown", "-")
    assert done.stdout.startswith("# `sbpair syphon --once`: partial\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
def test_a_report_does_not_follow_the_link_of_another_user(tmp_path: Path) -> None:
    made, precious, link = report(tmp_path / "state"), tmp_path / "precious", tmp_path / "report.md"
    precious.write_text("x")
    link.symlink_to(precious)
    assert run(tmp_path / "state", made.run, "--markdown", str(link)).returncode == 0
    assert precious.read_text() != "x"
    precious.write_text("x")
    os.lchown(link, 12345, 12345)
    done = run(tmp_path / "state", made.run, "--markdown", str(link))
    assert (done.returncode, "it is a symbolic link of another user" in done.stderr) == (7, True)
    assert precious.read_text() == "x"


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: Debian's package chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_scrolling_sideways(tmp_path: Path, width: int) -> None:
    page = tmp_path / "r.html"
    frame = tmp_path / "frame.html"
    page.write_text(render_html(report(tmp_path / "state", tally=moved(9, hostile="x" * 250))))
    script = "onload=()=>document.title=frames[0].document.documentElement.scrollWidth"
    frame.write_text(
        f'<iframe src="r.html" style="width:{width}px;height:900px;border:0"></iframe><script>{script}</script>'
    )
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom")
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [str(CHROMIUM), *options, frame.as_uri()], capture_output=True, text=True, timeout=60, check=True, env=home
    )
    title = re.search(r"<title>(\d+)</title>", done.stdout)
    assert title
    assert int(title[1]) <= width


def test_a_running_run_is_reported_so_far(tmp_path: Path) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        entry = RunEntry(state, "syphon --watch")
        entry.sample(Figures({"received": 8, "sent": 5}, {"orders": 5}, None, None))
        done = run(tmp_path, entry.id, "--markdown", "-")
        entry.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# `sbpair syphon --watch`: running\n")
    assert "so far.\n" in done.stdout
    assert "> This run is still going on: all figures are those so far." in done.stdout


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_refused_before_the_run_is_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = run(Path("/nowhere"), "2611", "--html", str(tmp_path / "r.html"))
    assert (done.returncode, done.stdout) == (7, "")
    assert f"{tmp_path}/r.html cannot be written: Permission denied" in done.stderr


END = 100_000


def sample(second: int, destinations: Mapping[str, int], **counts: int) -> Sample:
    return Sample(1_000 * second, Figures(counts, destinations))


def plotted(title: str, *samples: Sample) -> Plot:
    [found] = [plot for plot in plots_of(0, END, samples) if plot.title == title]
    return found


def rates(plot: Plot, label: str) -> list[tuple[int, float]]:
    [curve] = [curve for curve in plot.curves if curve.label == label]
    return [(at_ms, value) for at_ms, value in curve.points if value is not None]


def test_destination_has_no_throughput_before_its_first_message() -> None:
    samples = [sample(second, {"orders": second}) for second in range(2, 60, 2)]
    samples += [sample(second, {"orders": 60, "invoices": 10 * (second - 58)}) for second in range(60, 102, 2)]
    plot = plotted("Throughput by destination", *samples)
    assert all(value_at(rates(plot, "invoices"), at_ms) < 0.001 for at_ms in range(0, 56_000, 2_000))
    assert round(value_at(rates(plot, "invoices"), 80_000), 3) == 10.0


def test_destination_that_a_full_sample_lacks_is_not_said_to_have_had_none() -> None:
    many = {f"q{number}": 9 for number in range(MAX_DESTINATIONS)}
    later = {**dict(list(many.items())[1:]), "late": 50}
    plot = plotted("Throughput by destination", *(sample(at, many if at < 50 else later) for at in range(0, 102, 2)))
    assert round(plot.peaks["late"], 1) == 1.0  # 50 in 50 seconds


def test_counter_that_later_samples_lack_stays_as_it_is() -> None:
    drained = [sample(second, {}, received=second) for second in (1, 11)]
    sent = [sample(second, {}, sent=second - 50) for second in (51, 61, 100)]
    plot = plotted("Messages", *drained, *sent)
    assert rates(plot, "received")[-1] == (END, 11.0)
    assert value_at(rates(plot, "sent"), 40_000) < 1.0
    found = timeline_rows(0, END, [*drained, *sent])
    assert found is not None
    assert found[1][-1][1:3] == (11, 50)
