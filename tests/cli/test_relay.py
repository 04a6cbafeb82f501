"""`sbpair relay` against an emulated relay: send, status and provision, and wrong inputs of all commands."""

import sys
from collections.abc import Iterator
from pathlib import Path

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


def test_send_prints_the_answer_its_status_and_its_side(world: RelayWorld) -> None:
    with world.listener():
        code, out, err = world.run("send", "default", "/a?x=1", "--first", "secondary")
        assert (code, out, err) == (0, "GET /service-west/a?x=1 0\n", ["200 OK from the secondary"])
        code, out, _err = world.run("send", "default", "-o", "json", "--first", "primary")
        document = parse_validated(out)
    assert (code, document["side"], document["body"]) == (0, "primary", "GET /service-east 0\n")


def test_send_sends_a_file_with_headers(world: RelayWorld, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * 200_000)
    with world.listener():
        words = ("send", "default", "/up", "--first", "primary", "--data", f"@{body}", "-H", "X-A: 1")
        assert world.run(*words)[:2] == (0, "POST /service-east/up 200000\n")
        assert world.run(*words, "-X", "PUT")[1] == "PUT /service-east/up 200000\n"


def test_a_status_from_400_exits_3_with_the_body(world: RelayWorld) -> None:
    with world.listener(404):
        code, out, err = world.run("send", "default", "--first", "primary", "-q")
    assert (code, out, err) == (3, "GET /service-east 0\n", ["404 Not Found from the primary"])


def test_a_request_in_doubt_exits_3_and_is_reissued_only_if_asked(world: RelayWorld) -> None:
    words = ("send", "default", "/x", "-X", "POST", "--first", "primary")
    with world.listener(side="secondary"), world.during("namespace-down", "contoso"):
        code, out, err = world.run(*words)
        assert (code, out) == (3, "")
        assert err[0].startswith("error: a request may have been executed, and was not sent again: the primary: ")
        assert err[1:] == [
            "hint: check whether it was executed; --reissue always sends it again, and may execute it twice"
        ]
        code, out, err = world.run(*words, "--reissue", "always")
    assert (code, out) == (0, "POST /service-west/x 0\n")
    assert "the primary is not available, and may have executed a request" in err[0]
    assert err[1:] == ["200 OK from the secondary"]


def test_both_failed_names_the_side_that_may_have_executed_it(world: RelayWorld) -> None:
    with world.during("namespace-down", "contoso"):
        code, _out, err = world.run("send", "default", "--first", "primary")
    assert (code, err[-1]) == (6, "hint: the primary may have executed it: check that before you send it again")


def test_both_sides_without_listeners_exit_6(world: RelayWorld) -> None:
    code, out, err = world.run("send", "default", "--first", "primary")
    assert (code, out) == (6, "")
    assert err[0].startswith("error: neither relay endpoint has answered")
    assert err[1:] == ["hint: start a listener, or check the running one"]


def test_status_counts_the_listeners_of_each_side(world: RelayWorld) -> None:
    code, out, _err = world.run("status")
    assert (code, out.count("no listeners")) == (6, 2)
    assert world.run("status", "--fail-on", "none")[0] == 0
    with world.listener():
        code, out, err = world.run("status", "-o", "json")
        document = parse_validated(out)
    assert (code, err, document["relay"]) == (0, [], "default")
    assert [(each["side"], each["path"], each["listeners"]) for each in document["sides"]] == [
        ("primary", "service-east", 1),
        ("secondary", "service-west", 1),
    ]


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
