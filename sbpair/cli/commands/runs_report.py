"""`sbpair runs report`: one run as an HTML page, or as Markdown for a ticket."""

import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair import __version__
from sbpair.cli.completion import runs as runs_of_pair
from sbpair.cli.options.common import NAMESPACE, STATE, Output, PairSelection, argument, option
from sbpair.cli.options.reach import owner_of_runs
from sbpair.cli.render.screen import Screen, size
from sbpair.cli.render.table import columns
from sbpair.errors import MachineLacks, SbpairError, UsageError
from sbpair.operating_system.files import is_link_of_another_user

if TYPE_CHECKING:
    from sbpair.cli.report.run_facts import RunReport
    from sbpair.model.pair import Ends
    from sbpair.replay.checksums import ArchiveFiles
    from sbpair.runs.run_log import RunRecord

SCHEMA = "sbpair/runs-report/1"
STDOUT = "-"


def report_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=runs_of_pair),
    html: str | None = option("--html FILE", "Write one self-contained page; - for stdout"),
    markdown: str | None = option("--markdown FILE", "Write Markdown for a ticket; - for stdout"),
    namespace: str | None = NAMESPACE,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Write a report of one run: receipt, timeline, dead letters, options and cost.

    A running run is reported so far. An existing file is replaced. The page has no scripts, loads nothing, and prints
    well; --html needs pip install 'sbpair[report]'. A replay's report has checksums of its archive, if it can be read.
    Reports hold message ids, entity names and host names, but neither bodies nor secrets.

    Examples:
      sbpair runs report 261122-101500 --html report.html
      sbpair runs report 261122-101500 --markdown -

    Exit codes: 0 written; 2 no such run; 7 a file cannot be written, or the extra is not installed

    See also: sbpair help runs
    """
    wanted = {name: file for name, file in (("html", html), ("markdown", markdown)) if file is not None}
    _check(wanted, screen)
    owner = owner_of_runs(connection, screen, namespace, state)
    with ExitStack() as stack:
        targets = {name: stack.enter_context(_target(file)) for name, file in wanted.items() if file != STDOUT}
        report, texts = _rendered(owner.directory, owner.ends, run_id, wanted)
        for name, target in targets.items():
            target.write_text(texts[name], "utf-8")
    if STDOUT in wanted.values():
        [name] = [name for name, file in wanted.items() if file == STDOUT]
        screen.write(texts[name].rstrip("\n"))
        return 0
    written = [{"format": name, "path": file, "bytes": len(texts[name].encode())} for name, file in wanted.items()]
    rows = [(file, name, size(len(texts[name].encode()))) for name, file in wanted.items()]
    document = {"run": report.run, "outcome": report.outcome, "files": written}
    screen.result(SCHEMA, document, columns([("FILE", "FORMAT", "SIZE"), *rows]))
    return 0


def _check(wanted: dict[str, str], screen: Screen) -> None:
    """Raise UsageError for options that do not go together, MachineLacks if the extra is not installed."""
    if not wanted:
        raise UsageError("expected --html FILE or --markdown FILE", hint="write - for stdout")
    for name, file in wanted.items():
        if not file:
            raise UsageError(f"--{name} is empty", hint="give the path of a file, or - for stdout")
    if STDOUT in wanted.values() and (screen.output is not Output.TABLE or len(wanted) > 1):
        other = "two reports" if len(wanted) > 1 else f"--output {screen.output}"
        raise UsageError(f"{other} cannot share stdout with a report", hint="give the path of a file instead of -")
    if len(wanted) > 1 and len({Path(file).absolute() for file in wanted.values()}) == 1:
        raise UsageError("--html and --markdown name the same file", hint="give each a file of its own")
    from sbpair.replay.java import is_installed

    if "html" in wanted and not is_installed("matplotlib"):
        raise MachineLacks("matplotlib is not installed", hint="pip install 'sbpair[report]'")


@contextmanager
def _target(file: str) -> Iterator[Path]:
    """Yield a new file beside `file` that replaces it in the end. Raises MachineLacks before any work if it cannot."""
    path = Path(file).resolve()
    try:
        if is_link_of_another_user(Path(file)):
            raise PermissionError(errno.EACCES, "it is a symbolic link of another user")
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():  # a device or a pipe
            yield path
            return
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:40]}.", delete=False) as opened:
            beside = Path(opened.name)
        try:
            yield beside
            beside.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise MachineLacks(f"{file} cannot be written: {error.strerror}", hint="choose a writable path") from error


def _rendered(directory: Path, pair: "Ends", run_id: str, formats: Iterable[str]) -> tuple["RunReport", dict[str, str]]:
    from sbpair.cli.report.run_facts import report_of
    from sbpair.runs.database import state_if_any
    from sbpair.runs.run_log import find_run, timeline_of

    with state_if_any(directory, pair) or nullcontext() as kept:
        run = find_run(kept, run_id)
        samples = timeline_of(kept, run.id) if kept else []
    now_ms = int(time.time() * 1000)
    archive = _archive_of(run)
    with run.reading():
        report = report_of(run, samples, now_ms=now_ms, version=__version__, archive=archive)
        return report, {name: RENDERERS[name](report) for name in formats}


def _archive_of(run: "RunRecord") -> "ArchiveFiles | str | None":
    """Return the files of a replay's archive, or why they cannot be read; None for other runs."""
    url = (run.receipt or {}).get("archive")
    if not url:
        return None
    from sbpair.replay.java import is_installed

    if not is_installed("pyarrow"):
        return "pyarrow is not installed"
    from sbpair.replay.archive import Archive
    from sbpair.replay.archive_layout import RUN_FILE
    from sbpair.replay.checksums import files_of

    try:
        archive = Archive(str(url), run.id)
        return files_of(archive) if archive.exists(RUN_FILE) else "it is not there"
    except (SbpairError, OSError) as error:
        return error.message if isinstance(error, SbpairError) else str(error)


def _html(report: "RunReport") -> str:
    from sbpair.cli.report.pages import render_html

    return render_html(report)


def _markdown(report: "RunReport") -> str:
    from sbpair.cli.report.pages import render_markdown

    return render_markdown(report)


RENDERERS = {"html": _html, "markdown": _markdown}
