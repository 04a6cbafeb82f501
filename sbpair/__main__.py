"""The entry point: arguments in, exit code out. The one place where an error becomes two lines on stderr.

A connection string among the arguments is refused before anything else: every user of the machine can read them.

spark-submit runs this file by its path, instead of `python -m sbpair`.
"""

from __future__ import annotations

import sys

if not __package__:
    sys.path.pop(0)  # this file's directory, whose modules would hide others of the same name, such as azure

from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

from sbpair.errors import ExitCode, InDoubt, SbpairError, UsageError
from sbpair.model.connection_string import holds_secret, looks_like_connection_string
from sbpair.operating_system.shortages import no_room, shortage_of


def main() -> None:
    """Run the `sbpair` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Print an error to stderr, and return the exit code."""
    code = _run(arguments)
    if code and "--detach" in arguments and sys.stdout is not None:
        # A shell evaluates the output, and would take none for success.
        sys.stdout.write("throw 'sbpair has failed'\n" if "pwsh" in arguments else "false\n")
        sys.stdout.flush()
    return code


def _run(arguments: Sequence[str]) -> int:
    _open_stderr()
    _never_fail_to_encode()
    try:
        refuse_secrets(arguments)
        from sbpair.cli.app import invoke

        code = invoke(arguments)
        sys.stdout.flush()
    except SbpairError as error:
        wrong = (error, *error.others) if isinstance(error, UsageError) else (error,)
        codes = [_told(each.message, *_remedy(each), arguments, getattr(each, "excerpt", ())) for each in wrong]
        return codes[0]
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain again.
        _discard(sys.stdout)
        return ExitCode.PIPE_CLOSED
    except Exception as error:  # noqa: BLE001  # whatever it is, its traceback is not for users
        if (lack := shortage_of(error) or no_room(error)) is not None:
            return _told(lack.message, lack.hint, lack.exit_code, arguments)
        hint = "this is a bug: run it again with --debug, and report what it shows"
        return _told(f"unexpected {type(error).__name__}", hint, ExitCode.BUG, arguments)
    return code


def _remedy(error: SbpairError) -> tuple[str, int]:
    """Return the hint and the exit code: those of a shortage of this machine, wherever it was noticed."""
    lack = shortage_of(error)
    return (error.hint, error.exit_code) if lack is None or isinstance(error, InDoubt) else (lack.hint, lack.exit_code)


def refuse_secrets(arguments: Sequence[str]) -> None:
    """Raise UsageError where an argument holds a key or a password. It is not repeated."""
    kind = "SBPAIR_RELAY" if arguments[:1] == ["relay"] else "SBPAIR"
    if any(map(looks_like_connection_string, arguments)):
        raise UsageError(
            "an argument looks like a connection string, which every user of this machine can read",
            hint=f"export {kind}_PRIMARY_CONNECTION_STRING or {kind}_SECONDARY_CONNECTION_STRING, and change the key",
        )
    if any(map(holds_secret, arguments)):
        elsewhere = "leave it out of --to; for a proxy, " if "--to" in arguments and kind == "SBPAIR_RELAY" else ""
        raise UsageError(
            "an argument looks like a URL with a password, which every user of this machine can read",
            hint=f"{elsewhere}export {kind}_PRIMARY_PROXY, {kind}_SECONDARY_PROXY or HTTPS_PROXY, and change the"
            " password",
        )


def _told(message: str, hint: str, code: int, arguments: Sequence[str], excerpt: Sequence[str] = ()) -> int:
    if "--debug" in arguments:
        import traceback

        traceback.print_exc()
    if _asks_for_json(arguments):
        from sbpair.cli.logs import line

        lines = [line("error", "sbpair", message, hint=hint, exit_code=code)]
    else:
        lines = [_printable(each) for each in (f"error: {message}", *excerpt, *([f"hint: {hint}"] if hint else []))]
    try:
        sys.stderr.write("".join(f"{each}\n" for each in lines))
        sys.stderr.flush()
    except OSError:  # the terminal is gone; Python flushes once more when it ends
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    from sbpair.operating_system import discard

    discard(stream)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether `--log-format json` is among the arguments, even if they cannot be parsed."""
    return "--log-format=json" in arguments or ("--log-format", "json") in pairwise(arguments)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


def _open_stderr() -> None:
    """Discard what a command writes to a stderr that is closed. Otherwise a later file would be its stderr."""
    if sys.stderr is None:
        import os
        from pathlib import Path

        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends


def _never_fail_to_encode() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
