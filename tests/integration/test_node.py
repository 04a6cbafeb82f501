"""The official client for JavaScript, unmodified, against the emulator: a peer that shares no code with anything here.

Its checks are in node/checks.mjs. All run in one process of Node, at once, and each is a test of its own here.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sbpair.testing import EmulatorOptions

HERE = Path(__file__).parent / "node"
RUN_SECONDS = 60
CHECKS = re.findall(r'^  "([^"]+)": async', (HERE / "checks.mjs").read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module", params=["TCP", "WebSocket"])
def outcomes(node: str, modules: Path, another: Any, request: pytest.FixtureRequest) -> dict[str, str | None]:
    """What each check came to: nothing, or what went wrong."""
    with another(options=EmulatorOptions(tls=True)) as running:
        ready = running.emulator.ready
        ran = subprocess.run(
            [node, str(HERE / "checks.mjs")],
            env={
                "PATH": os.environ["PATH"],
                "MODULES": f"{modules}/",
                "NODE_EXTRA_CA_CERTS": ready.ca_file,
                "PLAIN": ready.namespaces[0].connection_string,
                "TLS": ready.namespaces[0].tls_connection_string,
                "TRANSPORT": request.param,
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
