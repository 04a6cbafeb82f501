"""Commands without a credential: two lines, exit code 5. Refused ones are in `sessions/access.txt`."""

import os
from pathlib import Path

import pytest

from sbpair.testing import EmulatorThread
from tests.kit.command import Here

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
