"""Command lines that are refused before anything is contacted or written: `refused.txt` has each with what it prints.

A line may begin with variables of its environment; after `env -i`, nothing else is configured. The exit code is 2
unless it is named. `python tests/cli/test_golden.py` writes the file again.
"""

import io
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from sbpair import __main__
from sbpair.cli.app import find_command
from sbpair.cli.man_page import page_paths
from sbpair.cli.options.rules import name_of, needs_of, rules_of
from tests.kit.command import Here, untimed

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


def blocks() -> Iterator[tuple[str, str]]:
    """Yield each line of the table with what it prints."""
    for block in TABLE.read_text().split("$ ")[1:]:
        line, _, printed = block.partition("\n")
        yield line, printed


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


@pytest.mark.parametrize(("line", "printed"), list(blocks()), ids=[line[:60] for line, _ in blocks()])
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
    assert [each.name for each in tmp_path.iterdir()] == ["sbpair.toml"]


def test_every_refusal_is_an_error_and_a_hint() -> None:
    for line, printed in blocks():
        *_excerpt, hint = [each for each in printed.splitlines() if not each.startswith(("exit ", "warning: "))]
        assert "error: " in printed, line
        assert hint.startswith("hint: "), line


def declared() -> Iterator[tuple[str, str]]:
    """Yield a command line for each bound and each relation of each option, and the error that it must have."""
    for path in filter(None, page_paths()):
        params = getattr(find_command(path), "params", [])
        known = {name_of(param): param for param in params}
        needed = [word for param in params if param.required for word in _given(param, "1")]
        for name, param in known.items():
            rules, line = rules_of(param), ["sbpair", *path, *needed]
            for other in rules.excludes:
                if other in known:
                    words = [*line, *_given(param, "1"), *_given(known[other], "1")]
                    yield shlex.join(words), f"{name} and {other} exclude each other"
            leaders = needs_of(param, known)
            if leaders and name not in needed:
                yield shlex.join([*line, *_given(param, "1")]), f"{name} goes with {leaders[0]} only"
            elif not leaders:
                bounds = (rules.at_least, -1), (rules.at_most, 1)
                for value in (bound + beyond for bound, beyond in bounds if bound is not None):
                    yield shlex.join([*line, *_given(param, str(value))]), f"{name} is {value}, and must be "


def _given(param: object, value: str) -> list[str]:
    """Return the words that give a parameter a value that typer accepts."""
    info = param.type_descriptor.annotation  # type: ignore[attr-defined]
    value = str(getattr(info, "__args__", (value,))[0]) if "Literal" in str(info) else value
    if param.param_type_name == "argument":  # type: ignore[attr-defined]
        return [value]
    return [name_of(param)] if param.is_flag else [f"{name_of(param)}={value}"]  # type: ignore[attr-defined]


DECLARED = list(declared())


@pytest.mark.parametrize(("line", "error"), DECLARED, ids=[line[7:70] for line, _ in DECLARED])
def test_a_declared_bound_or_relation_is_checked_before_anything_else(line: str, error: str, here: Here) -> None:
    code, out, err = here(*shlex.split(line)[1:], NO_COLOR="1")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {error}")


def regenerate() -> None:
    """Write what each line of the table prints now."""
    text = []
    for line, _ in blocks():
        words, environ = parsed(line)
        with tempfile.TemporaryDirectory() as home, chdir(home), mock.patch.dict(os.environ, clear=True):
            Path("sbpair.toml").write_text(FILE)
            os.environ.update({"HOME": home, "NO_COLOR": "1", "COLUMNS": "80", **environ})
            with redirect_stderr(io.StringIO()) as err, redirect_stdout(io.StringIO()):
                code = __main__.run(words)
        text.append(f"$ {line}\n{shown(code, err.getvalue(), home)}")
    TABLE.write_text("".join(text))
