"""The vendor's relay clients for JavaScript, hyco-ws and hyco-https, unmodified, against the emulator.

Their checks are in node/relay/checks.mjs. All run in one process of Node, and each is a test of its own here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from sbpair.testing import EmulatorOptions
from tests.integration.node import install
from tests.kit.running import Running

HERE = Path(__file__).parent / "node" / "relay"
RUN_SECONDS = 60
CHECKS = re.findall(r'^  "([^"]+)": async', (HERE / "checks.mjs").read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def relay_modules() -> Path:
    try:
        return install.modules(HERE / "package.json")
    except install.NotHere as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["ws", "wss"])
def outcomes(node: str, relay_modules: Path, request: pytest.FixtureRequest) -> dict[str, str | None]:
    """Run all checks, and return the error of each, None where it passed."""
    with Running([("contoso", 0)], options=EmulatorOptions(tls=True)) as running:
        for path in ("sockets", "requests"):
            running.do(lambda path=path: running.namespace.hybrid_connections.create(path))
        ran = subprocess.run(
            [node, str(HERE / "checks.mjs")],
            env={
                "PATH": os.environ["PATH"],
                "MODULES": f"{relay_modules}/",
                "NODE_EXTRA_CA_CERTS": running.emulator.ready.ca_file,
                "BASE": f"{request.param}://{running.namespace.authority}",
            },
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {line["check"]: line["error"] for line in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_the_relay_clients_for_javascript_find_a_relay(outcomes: dict[str, str | None], check: str) -> None:
    assert outcomes[check] is None, outcomes[check]
