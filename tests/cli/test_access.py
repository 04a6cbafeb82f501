"""Commands with a refused credential: two lines, exit code 5, no secret shown, nothing changed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.testing import Emulator, EmulatorThread
from tests.kit.command import Here, environment
from tests.kit.sas import sign
from tests.kit.stranded import put, stranded

NAMED = "CONNECTION_STRING"
KEY = "a-key-that-nobody-may-see"
LISTEN = AuthorizationRule("listen", KEY, KEY, frozenset({AccessRight.LISTEN}))
EXPIRED_AT = 1_600_000_000

COMMANDS = (["provision"], ["audit"], ["syphon", "--once"], ["syphon", "--dry-run"])
BAD_KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=" + KEY


def with_listen(endpoint: str) -> str:
    return f"Endpoint={endpoint};SharedAccessKeyName=listen;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def with_bad_key(endpoint: str) -> str:
    return f"Endpoint={endpoint};{BAD_KEY};UseDevelopmentEmulator=true"


def with_expired_token(endpoint: str) -> str:
    token = sign(LISTEN, endpoint.replace("sb://", "https://"), EXPIRED_AT)
    return f"Endpoint={endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"


@pytest.fixture
def thread() -> Iterator[EmulatorThread]:
    with EmulatorThread() as thread:
        yield thread


@pytest.fixture
def emulator(thread: EmulatorThread) -> Emulator:
    """Return the emulator of the thread, for reading."""
    return thread.emulator


@pytest.fixture
def finished(here: Here, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Return a function that runs a command line for the pair of the emulator."""
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)
    return here


@pytest.fixture
def strand(thread: EmulatorThread) -> Callable[[], None]:
    """Return a function that puts a message into the backlog."""
    primary, secondary = thread.emulator.namespaces.values()

    def put_one() -> None:
        primary.create_queue("orders")
        put(secondary.create_queue(queue_path("contoso", 0)), stranded("m", "orders"))

    return lambda: thread.do(put_one)


def assert_refused(err: str) -> None:
    """Check that the last two lines are an error and a hint, without the key."""
    what, to_do = err.splitlines()[-2:]
    assert what.startswith("error: ")
    assert to_do.startswith("hint: ")
    assert "Traceback" not in err
    assert KEY not in err
    assert "sig=" not in err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("credential", [with_bad_key, with_expired_token], ids=["wrong key", "expired token"])
def test_a_secondary_that_does_not_accept_the_credential_stops_everything(
    emulator: Emulator, finished: Here, strand: Callable[[], None], words: list[str], credential: object
) -> None:
    strand()
    endpoint = emulator.ready.namespaces[1].endpoint
    code, out, err = finished(
        *words,
        SBPAIR_SECONDARY_CONNECTION_STRING=credential(endpoint),  # type: ignore[operator]
    )
    assert (code, out) == (5, "")
    assert_refused(err)
    assert "the key in SBPAIR_SECONDARY_CONNECTION_STRING: " in err.splitlines()[-1]
    assert len(emulator.namespaces["contoso-dr"].queues()) == 1
    assert emulator.namespaces["contoso-dr"].queue(queue_path("contoso", 0)).counts().total == 1


@pytest.mark.parametrize("words", [["receive", "orders"], ["receive", "orders", "--remove", "--yes"]], ids=" ".join)
def test_a_primary_that_does_not_accept_the_key_names_its_variable(
    emulator: Emulator, finished: Here, strand: Callable[[], None], words: list[str]
) -> None:
    strand()
    refused = with_bad_key(emulator.ready.namespaces[0].endpoint)
    code, out, err = finished(*words, SBPAIR_PRIMARY_CONNECTION_STRING=refused)
    assert (code, out) == (5, "")
    assert_refused(err)
    assert "the key in SBPAIR_PRIMARY_CONNECTION_STRING: " in err.splitlines()[-1]
    assert err.endswith("or this machine's clock may be wrong; sbpair doctor tests each step\n")


PLACE = ["--subscription", "00000000-0000-0000-0000-000000000000", "--resource-group", "messaging"]
SIGNED_OUT = "#!/bin/sh\necho \"ERROR: Please run 'az login' to setup account.\" >&2\nexit 1\n"


@pytest.mark.parametrize(
    "words", [["provision", "--via", "arm", *PLACE], ["syphon", "--once", "--quiet"]], ids=" ".join
)
def test_without_a_sign_in_the_error_names_az_login(
    emulator: Emulator, finished: Here, tmp_path: Path, words: list[str]
) -> None:
    az = tmp_path / "az"
    az.write_text(SIGNED_OUT)
    az.chmod(0o700)
    # Others than the one that asks `az` would look for themselves outside of this machine.
    environ = {"AZURE_TOKEN_CREDENTIALS": "AzureCliCredential", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    file = tmp_path / "config.toml"
    sides = zip(("primary", "secondary"), emulator.namespaces.values(), strict=True)
    file.write_text(
        "".join(
            f'[pairs.p.{side}]\nnamespace = "{each.name}"\nendpoint = "{each.authority}"\ntls = false\n'
            for side, each in sides
        )
    )
    nothing = {f"SBPAIR_{side}_{key}": "" for side in ("PRIMARY", "SECONDARY") for key in ("NAME", NAMED)}
    code, out, err = finished(*words, SBPAIR_CONFIG=str(file), **nothing, **environ)
    assert (code, out) == (5, "")
    assert_refused(err)
    assert len(err.splitlines()) == 2
    assert "no identity is signed in" in err
    assert "az login" in err


@pytest.mark.parametrize("words", COMMANDS[:2], ids=" ".join)
def test_a_missing_manage_claim_is_reported_and_nothing_is_created(
    emulator: Emulator, finished: Here, words: list[str]
) -> None:
    secondary = emulator.namespaces["contoso-dr"]
    secondary.keys = (*secondary.keys, LISTEN)
    listen = with_listen(emulator.ready.namespaces[1].endpoint)
    code, out, err = finished(*words, SBPAIR_SECONDARY_CONNECTION_STRING=listen)
    assert (code, out) == (5, "")
    assert_refused(err)
    assert "Manage" in err
    assert secondary.queues() == []


@pytest.mark.parametrize("credential", [with_bad_key, with_expired_token, with_listen])
def test_without_send_rights_on_the_primary_messages_stay_in_the_backlog(
    emulator: Emulator, finished: Here, strand: Callable[[], None], credential: object
) -> None:
    strand()
    primary = emulator.namespaces["contoso"]
    primary.keys = (*primary.keys, LISTEN)
    code, _out, err = finished(
        *("syphon", "--once"),
        SBPAIR_PRIMARY_CONNECTION_STRING=credential(emulator.ready.namespaces[0].endpoint),  # type: ignore[operator]
    )
    assert code == 5
    assert "Traceback" not in err
    assert KEY not in err
    backlog = emulator.namespaces["contoso-dr"].queue(queue_path("contoso", 0))
    assert (backlog.counts().active, backlog.counts().dead_letter) == (1, 0)
    assert [message.delivery_count for message in backlog.messages.peek(0, 1)] == [0]
