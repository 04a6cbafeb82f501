"""Command lines that are refused before anything is contacted or written: `refused.txt` has each with what it prints.

Lines that print the same stand together. `declared.txt` has the refusals that declarations demand. A line may begin
with variables of its environment; after `env -i`, nothing else is configured. The exit code is 2 unless it is named.
`python tests/cli/test_golden.py` writes the file again.
"""

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from tests.kit.command import Here, captured, untimed

TABLE = Path(__file__).parent / "refused.txt"
KEY = "c2VjcmV0a2V5"
FILE = """
[namespaces.archive]
connection_string_env = "SBPAIR_SECONDARY_CONNECTION_STRING"
name = "cellar"
"""


def emulated(port: int, more: str = "") -> str:
    keyed = f"SharedAccessKeyName=Root;SharedAccessKey={KEY}"
    return f"Endpoint=sb://127.0.0.1:{port};{keyed};UseDevelopmentEmulator=true{more}"


CONFIGURED = {
    "SBPAIR_CONFIG": "sbpair.toml",
    **{f"SBPAIR_{side}_CONNECTION_STRING": emulated(port) for side, port in (("PRIMARY", 1), ("SECONDARY", 2))},
    "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING": emulated(3, ";EntityPath=hyco"),
    "SBPAIR_RELAY_SECONDARY_CONNECTION_STRING": emulated(4, ";EntityPath=hyco"),
    "SBPAIR_PRIMARY_NAME": "contoso",
    "SBPAIR_SECONDARY_NAME": "contoso-dr",
}


def rows() -> Iterator[tuple[str, str]]:
    """Yield each line of the table with what it prints."""
    for lines, printed in re.findall(r"((?:^\$ .*\n)+)((?:^(?!\$ ).*\n)+)", TABLE.read_text(), re.MULTILINE):
        yield from ((line.removeprefix("$ "), printed) for line in lines.splitlines())


def parsed(line: str) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of a line. `$KEY` stands for a key that must not be printed."""
    words = shlex.split(line.replace("$KEY", KEY).replace("\\r", "\r").replace("\\n", "\n").replace("\\x", "\x1b"))
    environ = {} if words[:2] == ["env", "-i"] else dict(CONFIGURED)
    before, after = words[: words.index("sbpair")], words[words.index("sbpair") + 1 :]
    return after, environ | dict(each.split("=", 1) for each in before if "=" in each)


def shown(code: int, err: str, home: str) -> str:
    """Return what a command line has printed, below its home `~`."""
    err = untimed(err).replace(home, "~")
    return err if code == 2 else f"{err}exit {code}\n"


@pytest.mark.parametrize(("line", "printed"), list(rows()), ids=[line[:60] for line, _ in rows()])
def test_a_wrong_command_line_has_its_error_and_hint(
    line: str, printed: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AZURE_SUBSCRIPTION_ID", "AZURE_RESOURCE_GROUP", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sbpair.toml").write_text(FILE)
    words, environ = parsed(line)
    code, out, err = here(*words, **environ, NO_COLOR="1", COLUMNS="80")
    assert (shown(code, err, str(tmp_path)), out) == (printed, ""), (
        "if it should change: python tests/cli/test_golden.py"
    )
    assert KEY not in err
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("sbpair.toml", FILE)]


def test_every_refusal_is_an_error_and_a_hint() -> None:
    for line, printed in rows():
        *_excerpt, hint = [each for each in printed.splitlines() if not each.startswith(("exit ", "warning: "))]
        assert "error: " in printed, line
        assert hint.startswith("hint: "), line


def regenerate() -> None:
    """Write what each line of the table prints now."""
    lines: dict[str, list[str]] = {}
    for line, _ in rows():
        words, environ = parsed(line)
        with tempfile.TemporaryDirectory() as home, chdir(home):
            Path("sbpair.toml").write_text(FILE)
            own = {"HOME": home, "NO_COLOR": "1", "COLUMNS": "80"}
            code, _, err = captured(words, own | environ, clear=True)
        lines.setdefault(shown(code, err, home), []).append(f"$ {line}\n")
    TABLE.write_text("".join("".join(each) + printed for printed, each in lines.items()))
