"""The smallest versions that pyproject.toml allows, beside the newest, which the other tests use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.builds import ROOT, build
from tests.packaging.first_minute import environment
from tests.packaging.smallest import CONSTRAINTS, smallest

EXTRAS = "metrics,otel,relay,report"
TESTS = [
    "tests/azure",
    "tests/amqp_client",
    "tests/failover",
    "tests/metrics",
    "tests/relay",
    "tests/cli/test_man.py",
    "tests/cli/test_watch.py",
]
NEWER = "test_a_collector_that_is_away_is_one_warning"
"""The test of a text that earlier versions of OpenTelemetry do not log."""


def test_the_constraints_follow_the_declared_requirements() -> None:
    assert CONSTRAINTS.read_text() == smallest(), "python -m tests.packaging.smallest writes them"


@pytest.mark.slow
def test_the_drills_and_the_tests_pass_with_the_smallest_versions(tmp_path: Path) -> None:
    wheel = build(ROOT, tmp_path).wheel
    python = str(tmp_path / ".venv/bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--constraint", str(CONSTRAINTS)]
    for command, folder in (
        ([sys.executable, "-m", "venv", ".venv"], tmp_path),
        ([*install, f"{wheel}[{EXTRAS}]", "pytest", "pytest-xdist", "hypothesis", "jsonschema"], tmp_path),
        ([python, "-m", "sbpair", "drill"], tmp_path),
        ([python, "-m", "sbpair", "drill", "--relay"], tmp_path),
        ([python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-k", f"not {NEWER}", *TESTS], ROOT),
    ):
        done = subprocess.run(
            command, cwd=folder, env=environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
