"""Tests of Service Bus's clients, each as it is, with a gateway where it has a namespace. See EXCEPTIONS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.testing import EmulatorOptions
from tests.conformance.__main__ import MANAGING_VARIABLE, VARIABLE
from tests.conformance.registry import ASSUMPTION_CHECKS, JAVASCRIPT_CHECKS, PYTHON_CHECKS
from tests.conformance.test_conformance import entities_of, run
from tests.emulator.test_official_clients import (
    test_settlements_and_renewals_do_without_their_link,
    test_the_client_raises_its_error_for_a_refusal,
)
from tests.gateway.conftest import EXCEPTIONS
from tests.integration.node import checks
from tests.integration.test_node import SCRIPT, test_the_client_for_javascript_finds_a_service_bus
from tests.kit.running_gateway import RunningGateway

__all__ = [
    "test_settlements_and_renewals_do_without_their_link",
    "test_the_client_for_javascript_finds_a_service_bus",
    "test_the_client_raises_its_error_for_a_refusal",
]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    with RunningGateway() as running:
        yield running


@pytest.fixture(scope="module", params=["TCP", "WebSocket"])
def outcomes(node: str, modules: Path, request: pytest.FixtureRequest) -> dict[str, str | None]:
    with RunningGateway(options=EmulatorOptions(tls=True)) as running:
        plain, managed = running.connection_string, running.ready[0].tls_connection_string
        ca_file = running.emulator.ready.ca_file
        tls = plain.removesuffix(";UseDevelopmentEmulator=true")
        known = checks.environment(modules, ca_file, PLAIN=plain, TLS=managed, WSS=tls, TRANSPORT=request.param)
        return checks.run(node, SCRIPT, known)


@pytest.mark.odd_messages
def test_every_check_has_the_outcome_that_it_has_without_a_gateway() -> None:
    """Without one, every check passes: `tests/conformance`."""
    with RunningGateway() as running:
        managed = {MANAGING_VARIABLE: running.ready[0].connection_string}
        done = run("--output", "json", **{VARIABLE: running.connection_string}, **managed)
        assert entities_of(running) == []
    found = json.loads(done.stdout)["checks"]
    known = {check.name for check in (*ASSUMPTION_CHECKS, *PYTHON_CHECKS)}
    if "JavaScript is not checked" not in done.stderr:
        known |= {check.name for check in JAVASCRIPT_CHECKS}
    assert {check["name"] for check in found} == known
    failed = {check["name"]: check["error"] for check in found if not check["passed"]}
    assert failed.keys() == EXCEPTIONS.keys() & known, failed
