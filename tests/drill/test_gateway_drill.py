"""The drill of a gateway: its account, what makes it fail, and the client for JavaScript where it is installed."""

from pathlib import Path
from typing import Any

import pytest

from sbpair.drill import gateway_drill
from sbpair.drill.gateway_drill import NODE, PYTHON, Applications, ClientTally, run_gateway_drill
from tests.integration.node import install
from tests.kit.command import Here
from tests.kit.json_schemas import parse_validated

# The SDK leaves the sockets of what has failed to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_drill_loses_nothing_and_says_so(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_drill.shutil, "which", lambda _: None)
    code, out, err = here("drill", "--gateway", "-o", "json")
    found = parse_validated(out)
    (client,) = found["clients"]
    assert (code, client["client"]) == (0, PYTHON), err
    assert client["sent"] >= client["in_outage"] + 20
    assert client["in_outage"] >= 10
    assert [client[name] for name in ("lost", "unexplained", "altered", "failed")] == [0, 0, 0, 0]
    phases = [each["name"] for each in found["timeline"] if each["name"] != "gateway"]
    assert phases == ["start", "sending", "primary-down", "primary-up", "syphon", "compare"]


async def test_the_client_for_javascript_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        install.node()
        monkeypatch.setenv("NODE_PATH", str(install.modules() / "node_modules"))
    except install.NotHere as why:
        pytest.skip(str(why))
    result = await run_gateway_drill()
    assert {each.client for each in result.clients} == {PYTHON, NODE}
    assert result.exit_code == 0, result.clients


@pytest.mark.parametrize(
    ("received", "doubtful", "attempts", "wrong"),
    [
        ({"a": {1}}, set(), 1, {}),
        ({}, set(), 1, {"lost": 1}),
        ({"a": {1, 2}}, set(), 1, {"duplicated": 1, "unexplained": 1}),
        ({"a": {1, 2}}, {"a"}, 1, {"duplicated": 1}),
        ({"a": {1, 2}}, set(), 2, {"duplicated": 1}),
    ],
    ids=["once", "never", "twice", "twice and named", "sent twice"],
)
def test_each_accepted_message_is_accounted(
    received: dict[str, set[int]], doubtful: set[str], attempts: int, wrong: dict[str, Any]
) -> None:
    applications = Applications(tallies={PYTHON: ClientTally(client=PYTHON)}, doubtful=doubtful)
    applications.sent(PYTHON, "a")
    applications.attempted["a"] = attempts
    applications.received.update(received)
    (tally,) = applications.account()
    figures = {name: getattr(tally, name) for name in ("lost", "duplicated", "unexplained", "altered")}
    assert {name: value for name, value in figures.items() if value} == wrong


def test_the_program_for_javascript_is_part_of_the_package() -> None:
    assert Path(gateway_drill.__file__).with_name("gateway_client.cjs").exists()
