"""Diagnosis of sound namespaces, and of every failure that a check knows."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import doctor
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.doctor import CheckSubject
from sbpair.doctor.check import Check
from sbpair.emulator.faults.fault_points import Fault
from sbpair.emulator.server import RequestedNamespace
from sbpair.management.provisioning import provision
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, SasKey, SasToken
from sbpair.model.report import Outcome
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import RunEntry
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.disks import full
from tests.kit.pairs import endpoint_on, pair_on, use_identity

KEY = "a-key-that-nobody-may-see"
SIDES = {"primary": "contoso", "secondary": "contoso-dr"}
STANDARD = [("contoso", 0), ("contoso-dr", 0)]
CLAIMS = ("sign_in", "send", "listen", "manage")


def endpoints_on(emulator: Emulator) -> dict[str, Endpoint]:
    return {side: endpoint_on(emulator, name) for side, name in SIDES.items()}


def with_claims(emulator: Emulator, side: str, *claims: AccessRight) -> Endpoint:
    namespace = emulator.namespaces[SIDES[side]]
    namespace.keys = (*namespace.keys, AuthorizationRule("some", KEY, KEY, frozenset(claims)))
    return replace(endpoints_on(emulator)[side], credential=SasKey("some", KEY))


async def look(
    emulator: Emulator, *, seconds: float = 10, paths: dict[str, str] | None = None, **changed: Endpoint
) -> dict[str, Check]:
    """Return the checks by name, for a provisioned pair with a destination."""
    subject = CheckSubject(endpoints_on(emulator) | changed, Path("/nowhere/file"), Path("/nowhere"), paths or {})
    checks = {check.name: check for check in await doctor.diagnose(subject, seconds=seconds, environ={})}
    for check in checks.values():
        check_text(check)
    return checks


@asynccontextmanager
async def provisioned(options: EmulatorOptions | None = None) -> AsyncIterator[Emulator]:
    """Run a pair with two backlog queues, and a destination."""
    async with Emulator(STANDARD, options=options or EmulatorOptions()) as emulator:
        await provision(pair_on(emulator, 2))
        emulator.namespaces["contoso"].create_queue("orders")
        yield emulator


def failing(checks: dict[str, Check]) -> dict[str, int]:
    """Return the failed checks of the namespaces with their exit codes, without those of this machine."""
    return {
        name: check.exit_code
        for name, check in checks.items()
        if check.outcome is Outcome.FAILED and name.partition(".")[0] in SIDES
    }


def unknown(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.outcome is Outcome.UNKNOWN}


def check_text(check: Check) -> None:
    """Check that a failure has a hint, and that no text contains a key."""
    assert check.reason
    assert KEY not in repr(check)
    assert (check.outcome is Outcome.FAILED) == bool(check.exit_code)
    if check.outcome is Outcome.FAILED:
        assert check.detail.hint
        assert "\n" not in check.reason + check.detail.hint


async def test_with_all_well_nothing_fails_and_nothing_is_changed() -> None:
    async with provisioned() as emulator:

        def seen() -> list[object]:
            queues = [queue for each in emulator.namespaces.values() for queue in each.queues()]
            return [(queue.path, queue.description, queue.counts(), queue.updated_at_ms) for queue in queues]

        before = seen()
        checks = await look(emulator)
        assert seen() == before
        assert (failing(checks), unknown(checks)) == ({}, set())
        assert all(checks[f"{side}.{claim}"].outcome is Outcome.OK for side in SIDES for claim in CLAIMS)
        assert checks["tiers"].outcome is Outcome.OK


SIGNATURE = "SharedAccessSignature sr=https%3A%2F%2F127.0.0.1"
ROOT = "RootManageSharedAccessKey"


def having(**changed: Any) -> Callable[[Emulator], dict[str, Endpoint]]:
    """Return a function that changes the endpoint of the primary."""
    return lambda emulator: {"primary": replace(endpoints_on(emulator)["primary"], **changed)}


def faulty(kind: str, namespace: str = "contoso", **fields: int) -> Callable[[Emulator], str]:
    return lambda emulator: emulator.faults.begin(Fault(kind, namespace, **fields))


@pytest.mark.parametrize(
    ("break_it", "failed", "unknowns", "reason"),
    [
        (having(port=1), {"tcp": 6, "http": 6}, "tls amqp clock tier sign_in", "connection refused at"),
        (having(host="contoso.invalid"), {"dns": 6, "http": 6}, "tcp tls amqp clock", "has no address"),
        (having(tls=True), {"tls": 6, "http": 6}, "amqp clock sign_in", "does not speak TLS"),
        # An address that is not the loopback's, and yet this machine.
        (having(host="0.0.0.0", emulator=False), {"tls": 3}, "", "0.0.0.0 is another machine"),  # noqa: S104
        (having(credential=SasKey(ROOT, KEY)), {"sign_in": 5}, "send listen manage tier", ""),
        (having(credential=SasToken(f"{SIGNATURE}&sig=x&se=1&skn={ROOT}")), {"sign_in": 5}, "send", ""),
        (having(credential=SasToken(f"{SIGNATURE}&sig=x&se={2**40}&skn=x")), {"sign_in": 5}, "send", ""),
        (having(credential=SasToken(f"{SIGNATURE}&sig=%3D%3D&se={2**33}&skn={ROOT}")), {"sign_in": 5}, "send", ""),
        (faulty("namespace-down"), {"amqp": 6, "http": 6}, "clock tier sign_in", ""),
        (faulty("throttle"), {"manage": 6}, "tier", ""),
    ],
)
async def test_what_is_wrong_fails_alone_and_hides_nothing_of_the_other_side(
    break_it: Callable[[Emulator], Any], failed: dict[str, int], unknowns: str, reason: str
) -> None:
    async with provisioned() as emulator:
        broken = break_it(emulator)
        checks = await look(emulator, **(broken if isinstance(broken, dict) else {}))
        assert failing(checks) == {f"primary.{name}": code for name, code in failed.items()}
        assert {f"primary.{name}" for name in unknowns.split()} <= unknown(checks)
        assert reason in checks[f"primary.{next(iter(failed))}"].reason
        assert all(checks[f"secondary.{claim}"].outcome is Outcome.OK for claim in CLAIMS)


async def test_a_refused_management_side_leaves_links_and_neighbours_alone() -> None:
    async with provisioned() as emulator:
        emulator.faults.begin(Fault("refuse-requests", "contoso-dr", status=403))
        checks = await look(emulator)
        assert (failing(checks), checks["secondary.manage"].outcome) == ({}, Outcome.NOTE)
        assert checks["primary.manage"].outcome is Outcome.OK


@pytest.mark.parametrize("ms", [100_000, 2 * 3_600_000])
async def test_a_wrong_clock_fails_alone_and_is_measured(ms: int) -> None:
    async with provisioned() as emulator:
        emulator.advance(ms)
        emulator.clock.advanced_ms = 0  # it is the service's own, by which tokens are judged
        checks = await look(emulator)
        assert failing(checks) == {"primary.clock": 3, "secondary.clock": 3}
        behind = re.search(r"(\d+) s behind that of contoso;", checks["primary.clock"].reason)
        assert behind is not None
        assert 0 <= int(behind[1]) - ms // 1000 <= 2  # the check takes its time


async def test_no_other_queue_is_tried_than_a_named_one() -> None:
    async with provisioned() as emulator:
        checks = await look(emulator, paths={"secondary": "nowhere"})
        assert unknown(checks) == {"secondary.send", "secondary.listen"}
        assert checks["primary.send"].outcome is Outcome.OK


async def test_claims_without_queues_are_unknown_with_a_hint() -> None:
    async with Emulator(STANDARD) as emulator:
        checks = await look(emulator)
        assert failing(checks) == {}
        assert unknown(checks) == {f"{side}.{claim}" for side in SIDES for claim in ("send", "listen")}
        assert "--destination" in checks["primary.send"].detail.hint
        assert "sbpair provision" in checks["secondary.send"].detail.hint


S, L, M = AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE


@pytest.mark.parametrize(
    ("side", "claims", "failed"),
    [
        ("secondary", (L,), set()),
        ("secondary", (S,), {"secondary.listen"}),
        ("secondary", (S, L), set()),
        ("secondary", (M,), {"secondary.listen"}),
        ("secondary", (M, L), set()),
        ("primary", (L,), {"primary.send"}),
        ("primary", (M,), {"primary.send"}),
        ("primary", (L, M), {"primary.send"}),
        ("primary", (S,), set()),
        ("primary", (S, L), set()),
    ],
)
async def test_a_claim_that_is_missing_fails_where_something_needs_it(
    side: str, claims: tuple[AccessRight, ...], failed: set[str]
) -> None:
    async with provisioned() as emulator:
        checks = await look(emulator, paths={"primary": "orders"}, **{side: with_claims(emulator, side, *claims)})
        assert failing(checks) == dict.fromkeys(failed, 5)
        for claim in (S, L, M):
            missing = Outcome.FAILED if f"{side}.{claim.lower()}" in failed else Outcome.NOTE
            assert checks[f"{side}.{claim.lower()}"].outcome is (Outcome.OK if claim in claims else missing)
        assert checks[f"{side}.sign_in"].outcome is Outcome.OK


async def test_a_connection_that_falls_silent_is_not_waited_for() -> None:
    async with provisioned() as emulator:
        emulator.faults.begin(Fault("stall", "contoso-dr", after_frames=0))
        checks = await look(emulator, seconds=0.5)
        assert failing(checks) == {"secondary.amqp": 6}
        assert checks["secondary.amqp"].reason == "no answer within 0.5 s"
        assert checks["secondary.manage"].outcome is Outcome.OK
        assert {"secondary.send", "secondary.listen"} <= unknown(checks)
        assert checks["primary.send"].outcome is Outcome.OK


async def test_disabled_keys_are_no_missing_claim() -> None:
    async with provisioned() as emulator:
        emulator.faults.local_auth_disabled("contoso")
        checks = await look(emulator, paths={"primary": "orders"})
        assert failing(checks) == {"primary.sign_in": 5}
        assert "LocalAuthDisabled" in checks["primary.sign_in"].reason


async def test_an_identity_whose_provider_does_not_answer_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provisioned() as emulator:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}/token")
            monkeypatch.setenv("IDENTITY_HEADER", "header")
            signed_in = replace(endpoints_on(emulator)["primary"], credential=Identity())
            checks = await look(emulator, seconds=2.0, paths={"primary": "orders"}, primary=signed_in)
        assert failing(checks) == {"primary.send": 6, "primary.listen": 6, "primary.manage": 6}
        assert "primary.sign_in" in unknown(checks)
        for request in [task for task in asyncio.all_tasks() if task.get_name() == "request a token"]:
            while not request.done():  # the SDK survives some cancellations, and makes another attempt
                request.cancel()
                await asyncio.wait([request], timeout=0.2)


async def test_an_identity_that_is_signed_in_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provisioned(EmulatorOptions(identity=True)) as emulator:
        use_identity(emulator, monkeypatch)
        signed_in = replace(endpoints_on(emulator)["primary"], credential=Identity())
        checks = await look(emulator, primary=signed_in)
        assert (failing(checks), unknown(checks)) == ({}, set())
        assert checks["primary.sign_in"].reason == "accepted: the identity that is signed in"
        assert "identity_provider" not in checks
        both = await look(
            emulator, primary=signed_in, secondary=replace(endpoints_on(emulator)["secondary"], credential=Identity())
        )
        assert both["identity_provider"].reason == (
            "both sides sign in by login.microsoftonline.com: if it goes away, sends and moves go on for 1440 min more"
        )


def tls_endpoint(emulator: Emulator, side: str) -> Endpoint:
    [ready] = [each for each in emulator.ready.namespaces if each.name == SIDES[side]]
    return endpoint_from_connection_string(ready.tls_connection_string, name=SIDES[side])


async def test_tls_wants_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")

    async with provisioned(EmulatorOptions(tls=True)) as emulator:
        secure, ca_file = tls_endpoint(emulator, "primary"), emulator.ready.ca_file
        trusted = await look(emulator, primary=replace(secure, ca_file=ca_file))
        assert failing(trusted) == {}
        assert trusted["primary.tls"].reason.startswith("TLSv1.")
        untrusted = await look(emulator, primary=secure)
        assert failing(untrusted) == {"primary.tls": 6, "primary.http": 6}
        assert "not trusted" in untrusted["primary.tls"].reason
        for path in (str(garbage), "/nowhere/ca.pem"):
            checks = await look(emulator, primary=replace(secure, ca_file=path))
            assert failing(checks) == {"primary.tls": 2, "primary.http": 2}


@pytest.mark.parametrize(
    ("primary", "secondary", "failed", "noted"),
    [
        ("standard", "basic", {"secondary.tier"}, set()),
        ("basic", "standard", set(), {"primary.tier"}),
        ("premium", "standard", set(), {"tiers"}),
        ("premium", "premium", set(), set()),
        ("standard", "premium", set(), set()),
    ],
)
async def test_tiers_are_reported_with_their_limits(
    primary: str, secondary: str, failed: set[str], noted: set[str]
) -> None:
    async with Emulator(
        [RequestedNamespace("contoso", 0, primary), RequestedNamespace("contoso-dr", 0, secondary)]
    ) as emulator:
        checks = await look(emulator)
        assert set(failing(checks)) == failed
        assert {name for name, check in checks.items() if "tier" in name and check.outcome is Outcome.NOTE} == noted


async def test_a_side_that_is_not_configured_hides_nothing_of_the_other() -> None:
    async with provisioned() as emulator:
        subject = CheckSubject({"secondary": endpoints_on(emulator)["secondary"]}, Path("/nowhere"))
        checks = {check.name: check for check in await doctor.diagnose(subject, environ={})}
        assert checks["secondary.manage"].outcome is Outcome.OK
        assert checks["secondary.listen"].outcome is Outcome.OK, "any queue that takes links will do"
        assert not any(name.startswith("primary") for name in checks)


async def test_silent_side_does_not_delay_the_other() -> None:
    async with provisioned() as emulator:
        emulator.faults.begin(Fault("stall", "contoso", after_frames=0))
        events: list[Check] = []
        subject = CheckSubject(endpoints_on(emulator), Path("/nowhere"))
        diagnosis = await doctor.diagnose(subject, seconds=1.0, environ={}, on_event=events.append)
        names = [event.name for event in events]
        assert [name for name in names[names.index("primary.amqp") :] if name.startswith("secondary")] == []
        assert sorted(events, key=lambda check: check.name) == sorted(diagnosis, key=lambda check: check.name)


@pytest.mark.parametrize("name", ["state", "archive"])
async def test_a_full_disk_of_the_state_or_an_archive_fails(name: str, own_disk: Path, tmp_path: Path) -> None:
    async with Emulator(STANDARD) as emulator:
        pair, state = pair_on(emulator), (own_disk if name == "state" else tmp_path) / "records"
        with RunDatabase(state, pair.ends) as database, closing(RunEntry(database, "replay run")) as entry:
            entry.record({"archive": str(own_disk), "unsent": 1})
        with full(own_disk):
            subject = CheckSubject(endpoints_on(emulator), Path("/nowhere/file"), state)
            [check] = [each for each in await doctor.diagnose(subject) if each.name == name]
    assert (check.outcome, check.exit_code) == (Outcome.FAILED, 7)
    assert check.reason == f"the disk of {state if name == 'state' else own_disk} is full: 0 MB are left"
