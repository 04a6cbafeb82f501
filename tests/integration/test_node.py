"""The official client for JavaScript, unmodified, against the emulator: a peer that shares no code with anything here.

Its checks are in node/checks.mjs.
"""

from pathlib import Path
from typing import Any

import pytest

from sbpair.testing import EmulatorOptions
from tests.integration.node import checks

SCRIPT = Path(__file__).parent / "node" / "checks.mjs"


@pytest.fixture(scope="module", params=["TCP", "WebSocket"])
def outcomes(node: str, modules: Path, another: Any, request: pytest.FixtureRequest) -> dict[str, str | None]:
    with another(options=EmulatorOptions(tls=True)) as running:
        plain, tls = running.ready[0].connection_string, running.ready[0].tls_connection_string
        ca_file = running.emulator.ready.ca_file
        known = checks.environment(modules, ca_file, PLAIN=plain, TLS=tls, TRANSPORT=request.param)
        return checks.run(node, SCRIPT, known)


@pytest.mark.parametrize("check", checks.names(SCRIPT))
def test_the_client_for_javascript_finds_a_service_bus(outcomes: dict[str, str | None], check: str) -> None:
    assert outcomes[check] is None, outcomes[check]
