"""The official client for JavaScript, unmodified, against the emulator: a peer that shares no code with anything here.

Its checks are in tests/node/checks.mjs. All run in one process of Node, at once, and each is a test of its own here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sbpair.emulator.testing import Setup

HERE = Path(__file__).parents[1] / "node"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbpair-tests"
INSTALL_SECONDS = 120
RUN_SECONDS = 60
CHECKS = re.findall(r'^  "([^"]+)": async', (HERE / "checks.mjs").read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def node() -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js here")
    return node


@pytest.fixture(scope="module")
def modules() -> Path:
    """Where the client is installed, once for each version of it that is asked for."""
    wanted = (HERE / "package.json").read_bytes()
    place = CACHE / f"node-{hashlib.sha256(wanted).hexdigest()[:12]}"
    done = place / "installed"
    if done.exists():
        return place
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm here to install the client with")
    place.mkdir(parents=True, exist_ok=True)
    (place / "package.json").write_bytes(wanted)
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
    try:
        subprocess.run(install, cwd=place, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("the client for JavaScript is not in the cache, and the npm registry cannot be reached")
    done.touch()
    return place


@pytest.fixture(scope="module")
def outcomes(node: str, modules: Path, another: Any) -> dict[str, str | None]:
    """What each check came to: nothing, or what went wrong."""
    with another(setup=Setup(tls=True)) as running:
        ready = running.emulator.ready
        ran = subprocess.run(
            [node, str(HERE / "checks.mjs")],
            env={
                "PATH": os.environ["PATH"],
                "MODULES": f"{modules}/",
                "NODE_EXTRA_CA_CERTS": ready.ca_file,
                "PLAIN": ready.namespaces[0].connection_string,
                "TLS": ready.namespaces[0].tls_connection_string,
            },
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["check"]: line["error"] for line in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_the_client_for_javascript_finds_a_service_bus(outcomes: dict[str, str | None], check: str) -> None:
    assert outcomes[check] is None, outcomes[check]
