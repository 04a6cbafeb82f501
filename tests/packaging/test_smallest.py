"""The smallest versions that pyproject.toml allows, on each Python, beside the newest, which the other tests use."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.builds import ROOT, build
from tests.packaging.first_minute import environment

EXTRAS = ("metrics", "otel", "relay", "spark")
WHEELS = ("--quiet", "--only-binary", ":all:", "--no-binary", "pyspark")
"""Where a smallest version has no wheel for a Python, the next one that has. Spark has none."""

TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema")
TESTS = (
    "tests/azure",
    "tests/amqp_client",
    "tests/failover",
    "tests/metrics",
    "tests/relay",
    "tests/replay/test_replay.py",
    "tests/cli/test_man.py",
    "tests/cli/test_watch.py",
)
NEWER = "test_a_collector_that_is_away_is_one_warning"
"""The test of a text that earlier versions of OpenTelemetry do not log."""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_drills_and_the_tests_pass_with_the_smallest_versions(tmp_path: Path, version: str) -> None:
    def run(*command: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(
            command, cwd=folder, env=environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    run(sys.executable, "-m", "venv", "uv")
    run("uv/bin/pip", "install", "--quiet", "uv")
    uv = str(tmp_path / "uv/bin/uv")
    find = (uv, "python", "find", "--no-python-downloads", version)
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no Python {version} on this machine")
    run(found.stdout.strip(), "-m", "venv", ".venv")
    python = str(tmp_path / ".venv/bin/python")
    install = (uv, "pip", "install", "--python", python, *WHEELS)
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    run(*install, "--resolution", "lowest-direct", "--requirements", str(ROOT / "pyproject.toml"), *extras)
    run(*install, "--no-deps", str(build(ROOT, tmp_path).wheel))
    run(*install, *TOOLS)
    run(python, "-m", "sbpair", "drill")
    run(python, "-m", "sbpair", "drill", "--relay")
    run(python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-k", f"not {NEWER}", *TESTS, folder=ROOT)
