"""Commands without a credential, or with a wrong one, which each command that reads a side notices."""

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from sbpair.cli.app import COMMANDS
from sbpair.testing import EmulatorThread
from tests.cli.test_sessions import Session
from tests.kit.command import Here, captured

PLACE = ["--subscription", "00000000-0000-0000-0000-000000000000", "--resource-group", "messaging"]
SIGNED_OUT = "#!/bin/sh\necho \"ERROR: Please run 'az login' to setup account.\" >&2\nexit 1\n"


@pytest.mark.parametrize(
    "words", [["provision", "--via", "arm", *PLACE], ["syphon", "--once", "--quiet"]], ids=" ".join
)
def test_without_a_sign_in_the_error_names_az_login(here: Here, tmp_path: Path, words: list[str]) -> None:
    az, file = tmp_path / "az", tmp_path / "config.toml"
    az.write_text(SIGNED_OUT)
    az.chmod(0o700)
    # Others than the one that asks `az` would look for themselves outside of this machine.
    environ = {"AZURE_TOKEN_CREDENTIALS": "AzureCliCredential", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    with EmulatorThread() as thread:
        sides = zip(("primary", "secondary"), thread.emulator.namespaces.values(), strict=True)
        file.write_text(
            "".join(
                f'[pairs.p.{side}]\nnamespace = "{each.name}"\nendpoint = "{each.authority}"\ntls = false\n'
                for side, each in sides
            )
        )
        code, out, err = here(*words, SBPAIR_CONFIG=str(file), **environ)
    what, to_do = err.splitlines()
    assert (code, out) == (5, "")
    assert what.startswith("error: ")
    assert "no identity is signed in" in what
    assert to_do.startswith("hint: ")
    assert "az login" in to_do


READS = {
    "audit --sample 0 --fail-on none": "primary secondary",
    "audit --sample 0 --fail-on none --peek 0": "primary secondary",
    "audit --sample 0 --fail-on none --mirror": "primary secondary",
    "audit --sample 0 --fail-on none --to secondary": "secondary",
    "status": "primary secondary",
    "status --to secondary": "secondary",
    "doctor": "primary secondary",
    "entities --side primary": "primary",
    "entities secondary:*": "secondary",
    "ping orders": "primary",
    "peek orders": "primary",
    "peek 0": "secondary",
    "peek secondary:copy --dead-letters": "secondary",
    "receive orders": "primary",
    "receive secondary:copy": "secondary",
    "sessions grouped": "primary",
    "sessions grouped --show a": "primary",
    "deadletters list": "secondary",
    "deadletters show": "secondary",
    "syphon --dry-run": "primary secondary",
    "move primary:orders secondary:copy --dry-run": "primary secondary",
    "redrive --backlog --dry-run": "primary secondary",
    "redrive orders --by-reason": "primary",
    "remove orders --dry-run": "primary",
    "replay plan": "primary secondary",
    "provision --dry-run": "secondary",
    "provision --mirror --dry-run": "primary secondary",
    "prune --dry-run": "secondary",
    "discover --connection-string-env SBPAIR_SECONDARY_CONNECTION_STRING": "secondary",
}
"""Commands that only read, and the sides that they read."""

OTHERS = {"config", "cost", "export", "page", "runs", "service", "completions", "man", "help", "version", "schema"}
OTHERS |= {"partition", "emulator", "drill", "gateway", "relay", "send"}
"""Commands that read no namespace, or do more than read one. `partition list` shows the side that it can read."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = tmp_path_factory.mktemp("home")
    with chdir(home), EmulatorThread() as thread, Session(thread, home, captured) as made:
        for line in (
            "primary orders",
            "primary grouped sessions",
            "secondary copy",
            "secondary contoso/x-servicebus-transfer/0",
        ):
            made.answer(f"% queue {line}")
        yield made


@pytest.mark.parametrize("side", ["primary", "secondary"])
@pytest.mark.parametrize("line", READS)
def test_a_wrong_key_of_a_side_that_a_command_reads_is_exit_code_5(line: str, side: str, session: Session) -> None:
    session.answer(f"% key {side} wrong")
    answer = session.answer(f"$ sbpair {line}")
    session.answer(f"% key {side}")
    assert answer.endswith("exit 5\n") is (side in READS[line].split())
    if answer.endswith("exit 5\n") and "discover" not in line:
        assert "does not accept the key" in answer or "InvalidSignature" in answer or "refused" in answer
        assert f"SBPAIR_{side.upper()}_CONNECTION_STRING" in answer


def test_every_command_reads_a_side_or_is_known_not_to() -> None:
    assert {line.split()[0] for line in READS} | OTHERS == {*COMMANDS}
