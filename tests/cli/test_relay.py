"""`sbpair relay provision`, and wrong relays. What `send` and `status` print is in `sessions/relay.txt`."""

import sys
from collections.abc import Iterator

import pytest

from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.testing import EmulatorOptions, EmulatorThread
from tests.cli.relay_world import PATHS, RelayWorld
from tests.kit.command import Here
from tests.kit.json_schemas import parse_validated


@pytest.fixture
def world(here: Here) -> Iterator[RelayWorld]:
    with EmulatorThread() as thread:
        yield RelayWorld(thread, here)


def test_status_of_a_wrong_key_or_path(world: RelayWorld) -> None:
    variable = "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING"
    given = world.environ[variable]
    code, out, err = world.run("status", **{variable: given.replace("service-east", "nowhere")})
    assert (code, "does not exist" in out, err[-1][:5]) == (2, True, "hint:")
    key = given.partition("SharedAccessKey=")[2].partition(";")[0]
    code, out, err = world.run("status", **{variable: given.replace(key, "d3Jvbmc=")})
    assert (code, "d3Jvbmc" in out + str(err)) == (5, False)


def test_provision_creates_what_is_missing_and_reports_drift(here: Here) -> None:
    with EmulatorThread(options=EmulatorOptions(identity=True)) as thread:
        world = RelayWorld(thread, here)
        identity = thread.emulator.ready.identity
        assert identity is not None
        names = {f"SBPAIR_RELAY_{side}_NAME": name for side, name in zip(("PRIMARY", "SECONDARY"), PATHS, strict=True)}
        group = {"AZURE_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000", "AZURE_RESOURCE_GROUP": "any"}
        variable = "SBPAIR_RELAY_SECONDARY_CONNECTION_STRING"
        world.environ |= identity.environment | names | group
        world.environ[variable] = world.environ[variable].replace("service-west", "new/one")
        hybrid = thread.emulator.namespaces["contoso-dr"].hybrid_connections
        outcomes = []
        for words in (["--dry-run"], [], ["--strict"]):
            code, out, _err = world.run("provision", "default", "-o", "json", *words)
            outcomes.append((code, [each["outcome"] for each in parse_validated(out)["sides"]]))
        assert outcomes == [(0, ["existing", "would_create"]), (0, ["existing", "created"]), (0, ["existing"] * 2)]
        assert thread.do(lambda: hybrid.find("new/one")) is not None
        thread.do(lambda: hybrid.create("open", HybridConnectionDescription(requires_client_authorization=False)))
        world.environ[variable] = world.environ[variable].replace("new/one", "open")
        code, out, _err = world.run("provision", "default", "--strict")
        assert (code, "requiresClientAuthorization is False, expected True" in out) == (3, True)


def test_provision_without_its_extra_says_how_to_install_it(world: RelayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("azure.mgmt.relay")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "azure.mgmt.relay", None)
    group = {"AZURE_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000", "AZURE_RESOURCE_GROUP": "any"}
    code, out, err = world.run("provision", "default", **group)
    assert (code, out.count("azure-mgmt-relay is not installed"), err) == (
        7,
        2,
        ["hint: pip install 'sbpair[relay]'"],
    )
