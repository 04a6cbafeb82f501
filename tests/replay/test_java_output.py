"""What Java and its workers write to stderr, as log records."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from sbpair.cli import logs
from sbpair.cli.options.common import Display
from sbpair.replay import java


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("WARNING: Using incubator modules: jdk.incubator.vector", logging.DEBUG),
        ("WARNING: A terminally deprecated method was called", logging.WARNING),
        ("ERROR TaskSetManager: Task 0 failed", logging.ERROR),
        ("26/11/22 17:00:00 INFO SparkContext: Running", logging.INFO),
        ("26/11/22 17:00:00 WARN NativeCodeLoader: none", logging.WARNING),
        ("26/11/22 17:00:00 TRACE X: y", logging.DEBUG),
        ("\tat java.base/java.lang.Thread.run(Thread.java:840)", logging.WARNING),
    ],
)
def test_a_line_has_the_level_that_it_names(line: str, level: int) -> None:
    assert java.level_of(line) == level


def test_the_lines_of_a_child_are_logged_and_its_noise_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spark")
    program = "import sys; sys.stderr.write('WARNING: Using incubator modules: x\\n\\nERROR Task: failed\\nlast')"
    with java.logged_stderr() as descriptor:
        subprocess.run([sys.executable, "-c", program], stderr=descriptor, check=True)
        reader = next(each for each in java.threading.enumerate() if each.name == "java output")
    reader.join(10)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", "ERROR Task: failed"),
        ("WARNING", "last"),
    ]


@pytest.mark.parametrize(("verbose", "shown"), [(0, 0), (1, 1)])
def test_what_py4j_logs_of_an_interrupt_needs_verbose(
    verbose: int, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.root.handlers[:]
    try:
        logs.start(Display(verbose=verbose))
        logging.error("KeyboardInterrupt while sending command.")  # noqa: LOG015  as Py4J does
        logging.getLogger("sbpair").warning("the run goes on")
    finally:
        logging.root.handlers[:] = before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + shown
    assert lines[-1].endswith("the run goes on")
