"""The outcomes of the tests, from which WRITE_MATRIX=1 writes the table of clients."""

import os

import pytest

from tests.clients import matrix

outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test: of its call, or of what failed or skipped it before and after."""
    if report.when == "call" or not report.passed:
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, unless clients that cannot be had here would be missing."""
    is_whole = "skipped" not in [outcome for test, outcome in outcomes.items() if matrix.TEST.search(test)]
    if os.environ.get("WRITE_MATRIX") and is_whole and not hasattr(session.config, "workerinput"):
        matrix.write(outcomes)
