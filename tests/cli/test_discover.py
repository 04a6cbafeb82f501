"""`sbpair discover`: old pairs in the namespaces of an emulator, through Resource Manager and with keys."""

import asyncio
import json
import re
import socket
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.config import load_pair
from sbpair.emulator.frontends.http.arm_resources import PlacedNamespace
from sbpair.management.discovery import OldPair, PrimaryState, primary_state, with_names
from sbpair.model.pair import Endpoint, Identity
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit import command
from tests.kit.command import CommandLines
from tests.kit.proxy import running_proxy
from tests.kit.stranded import put, stranded

FIRST, OTHER = "00000000-0000-0000-0000-000000000000", "11111111-1111-1111-1111-111111111111"
NAMES = ["contoso", "contoso-dr", "fabrikam", *(f"other-{number:02}" for number in range(37))]


class World(CommandLines):
    """Forty namespaces in two subscriptions, and three old pairs in two of them: one lost, one that cannot be read."""

    def __init__(self, emulator: Emulator) -> None:
        assert emulator.ready.identity
        environ = command.environment(None, "AZURE_", "XDG_", NO_COLOR="1", **emulator.ready.identity.environment)
        super().__init__(environ)
        self.emulator = emulator
        self.configured = {
            "SBPAIR_PRIMARY_NAME": "contoso",
            "SBPAIR_PRIMARY_CONNECTION_STRING": emulator.namespaces["contoso"].connection_string,
        }
        for name, namespace in emulator.namespaces.items():
            namespace.resource["place"] = (OTHER if name == "fabrikam" else FIRST, "messaging")
        secondary, other = emulator.namespaces["contoso-dr"], emulator.namespaces["other-05"]
        emulator.namespaces["contoso"].create_queue("orders")
        for index in range(10):
            secondary.create_queue(f"contoso/x-servicebus-transfer/{index}")
        for name in ("Gone/x-servicebus-transfer/2", "fabrikam/x-servicebus-transfer/0", "a/b/x-servicebus-transfer/0"):
            other.create_queue(name)
        put(secondary.queue("contoso/x-servicebus-transfer/3"), stranded("m1", "orders"))
        dead = other.queue("Gone/x-servicebus-transfer/2")
        put(dead, stranded("m2", "orders"))
        dead.messages.dead_letter(dead.messages.receive(1)[0].lock_token)

    async def discover(self, *words: str, **more: Any) -> tuple[int, dict[str, Any], str]:
        code, out, err = await self.run("discover", *words, "-o", "json", **self.configured, **more)
        return code, json.loads(out), err


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Emulator([(name, 0) for name in NAMES], options=EmulatorOptions(identity=True)) as emulator:
        yield World(emulator)


async def test_three_pairs_among_forty_namespaces_are_found_and_written(tmp_path: Path) -> None:
    async with world() as w:
        file = tmp_path / "new" / "pairs.toml"
        before = [dict(each.entities) for each in w.emulator.namespaces.values()]
        code, found, err = await w.discover("--write", str(file))
        assert (code, found["namespaces"], found["skipped"], found["file"]) == (0, 40, [], str(file))
        assert f"next: sbpair status --config {file} --pair contoso" in err
        assert f"wins over {file}: unset SBPAIR_PRIMARY_CONNECTION_STRING SBPAIR_PRIMARY_NAME" in err
        assert {(each["primary"], each["secondary"]): each["state"] for each in found["pairs"]} == {
            ("contoso", "contoso-dr"): "found",
            ("gone", "other-05"): "unresolved",
            ("fabrikam", "other-05"): "found",
        }
        contoso, fabrikam, gone = sorted(found["pairs"], key=lambda each: each["name"])
        assert (contoso["backlog"]["messages"], contoso["backlog_queues"], len(contoso["queues"])) == (1, 10, 10)
        assert contoso["backlog"]["oldest_seconds"] < 600
        assert (contoso["subscription"], contoso["resource_group"]) == (FIRST, "messaging")
        assert (gone["backlog"]["dead_letters"], gone["backlog"]["messages"], gone["backlog_queues"]) == (1, 0, 3)
        assert re.fullmatch("last used on [-0-9]{10}", fabrikam["queues"][0]["note"])
        assert [dict(each.entities) for each in w.emulator.namespaces.values()] == before
        assert file.stat().st_mode & 0o777 == 0o600
        for name in ("contoso", "fabrikam", "gone"):
            pair = load_pair(name, config=file, environ={})
            assert (pair.primary.name, pair.backlog_queues) == (name, {"contoso": 10, "fabrikam": 1, "gone": 3}[name])
            code, out, _ = await w.run("config", "--config", str(file), "--pair", name)
            assert (code, f"{name}.servicebus" in out or f"{name}.localhost" in out) == (0, True)
        code, out, _ = await w.run("status", "--config", str(file), "--pair", "contoso", "-o", "json")
        assert (code, json.loads(out)["backlog"]["messages"]) == (0, 1)
        code, out, err = await w.run("syphon", "--once", "--config", str(file), "--pair", "contoso", "-o", "json")
        assert (code, json.loads(out)["sent"]) == (0, 1), err
        assert "add lost" in file.read_text()
        text = file.read_text()
        code, _, err = await w.run("discover", "--write", str(file), **w.configured)
        assert (code, "exists, and is not overwritten" in err, file.read_text()) == (2, True, text)
        code, found, err = await w.discover("--write", str(file / "below"))
        assert (code, found["file"], len(found["pairs"]), "cannot be created" in err) == (7, None, 3, True)


async def test_what_cannot_be_read_hides_nothing_else() -> None:
    async with world() as w:
        w.emulator.faults.entity_down("contoso-dr", "contoso/x-servicebus-transfer/3")
        w.emulator.faults.refuse_requests("other-05", 403, "$resources/queues", method="GET")
        code, found, err = await w.discover()
        assert (code, found["namespaces"], [each["primary"] for each in found["pairs"]]) == (3, 39, ["contoso"])
        [queue] = [each for each in found["pairs"][0]["queues"] if each["messages"]]
        assert queue["note"].startswith("its messages cannot be peeked: ")
        [skipped] = found["skipped"]
        assert (skipped["name"], "refuses it (403)" in skipped["reason"]) == ("other-05", True)
        assert "warning: skipped other-05: " in err


async def test_a_primary_outside_the_chosen_subscriptions_is_unreadable() -> None:
    async with world() as w:
        code, found, _ = await w.discover("--subscription", FIRST)
        states = {each["primary"]: each["state"] for each in found["pairs"]}
        assert (code, found["namespaces"]) == (0, 39)
        assert states == {"contoso": "found", "gone": "unresolved", "fabrikam": "unreadable"}


async def test_keys_by_the_names_of_variables_give_a_file_without_a_key(tmp_path: Path) -> None:
    async with world() as w:
        variables = {"DR": "contoso-dr", "FIRST": "contoso", "OTHER": "other-05"}
        strings = {name: w.emulator.namespaces[each].connection_string for name, each in variables.items()}
        file, words = tmp_path / "pairs.toml", [word for name in strings for word in ("--connection-string-env", name)]
        code, found, err = await w.discover(*words, "--write", str(file), **strings)
        assert (code, found["namespaces"]) == (0, 3), err
        states = {each["primary"]: each["state"] for each in found["pairs"]}
        assert states == {"contoso": "found", "gone": "unresolved", "fabrikam": "unreadable"}
        text = file.read_text()
        assert "SAS_KEY" not in text + json.dumps(found) + err
        assert tomllib.loads(text)["pairs"]["contoso"]["secondary"] == {
            "name": "contoso-dr",
            "connection_string_env": "DR",
        }
        code, out, _ = await w.run("status", "--config", str(file), "--pair", "contoso", "-o", "json", **strings)
        assert (code, json.loads(out)["backlog"]["messages"]) == (0, 1)
        wrong = {"DR": strings["DR"].replace("SAS_KEY_VALUE", "d3Jvbmc=")}
        code, found, err = await w.discover("--connection-string-env", "DR", **wrong)
        assert (code, found["pairs"], [each["name"] for each in found["skipped"]]) == (5, [], ["DR"])
        assert "d3Jvbmc" not in err


async def test_without_any_identity_the_error_is_one_line() -> None:
    async with world() as w:
        gone = dict.fromkeys(("IDENTITY_ENDPOINT", "IDENTITY_HEADER"), "") | {"AZURE_TOKEN_CREDENTIALS": "dev"}
        code, out, err = await w.run("discover", **w.configured, **gone)
        assert (code, out) == (5, "")
        assert re.search("^error: cannot sign in: no identity is signed in.*\nhint: sign in", err, re.MULTILINE)


async def test_a_configured_pair_names_the_cloud() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    async with world() as w, running_proxy(answer=refusal) as proxy:
        for more, host in (
            ({}, "management.azure.com"),
            ({"SBPAIR_PRIMARY_NAMESPACE": "contoso.servicebus.usgovcloudapi.net"}, "management.usgovcloudapi.net"),
            ({"SBPAIR_SECONDARY_NAMESPACE": "dr.servicebus.chinacloudapi.cn"}, "management.chinacloudapi.cn"),
        ):
            code, _, err = await w.run("discover", HTTPS_PROXY=proxy.url, NO_PROXY="127.0.0.1", **more)
            assert (code, proxy.targets.pop()) == (5, f"{host}:443"), err


def old(primary: str, secondary: str) -> OldPair:
    return OldPair("", primary, "found", secondary, "", "", 1, {})


@given(st.lists(st.tuples(st.from_regex(r"[a-z0-9._-]{1,70}", fullmatch=True), st.sampled_from(["dr", "x"]))))
def test_names_of_pairs_are_valid_and_unique(found: list[tuple[str, str]]) -> None:
    names = [each.name for each in with_names(old(*each) for each in found)]
    assert len({name.lower() for name in names}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) for name in names)


async def test_a_namespace_in_creation_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        to_json = PlacedNamespace.to_json

        def unfinished(placed: PlacedNamespace, provider: str) -> dict[str, Any]:
            found = to_json(placed, provider)
            return found | {"properties": {}} if placed.namespace.name == "other-36" else found

        monkeypatch.setattr(PlacedNamespace, "to_json", unfinished)
        code, found, _ = await w.discover()
        assert (code, len(found["pairs"])) == (0, 3)


AWAY = Endpoint("old", "old.invalid", "old.invalid", 5671, tls=True, credential=Identity())


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "unreadable"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "unresolved"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), "unknown"),
        (UnicodeError("label too long"), "unknown"),
        (TimeoutError(), "unknown"),
    ],
)
async def test_a_name_is_gone_only_if_dns_answers_so(
    error: Exception | None, state: PrimaryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: object) -> list[object]:
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await primary_state(AWAY) == state
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert await primary_state(AWAY) == "unknown"
