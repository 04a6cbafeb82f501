"""A command of sbpair in a pipeline: its output in the log, its result and its report in the summary, its exit code.

Environment: INPUT_COMMAND, INPUT_ACCEPT_EXIT_CODES; GITHUB_STEP_SUMMARY and GITHUB_OUTPUT, or SUMMARY_FILE.
No shell reads a value. Texts of messages can neither command the pipeline's agent nor format the summary.
"""

from __future__ import annotations

import html
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

PROGRAM = [sys.executable, "-P", "-m", "sbpair"]
"""Without the working directory on the path of modules: it may be a checkout that has a module of any name."""

SELECTIONS = ("--pair", "--config", "--primary", "--secondary", "--namespace", "--state")
"""The options of a command that the report of its run needs, too."""

RUN_LINE = re.compile(r'^(?:run |  "run": ")(\d{6}-\d{6}-\w{4})(?:[ "]|$)')
"""Of a receipt, as text or with --output json."""

MAX_OUTPUT = 64 * 1024
MAX_LAST_LINES, MAX_LINE = 20, 1000
MAX_REPORT = 512 * 1024
"""GitHub takes a summary of 1 MiB from a step."""


class Usage(Exception):
    """A wrong input of the step."""


def main() -> int:
    """Run the command, write the summary, and return the exit code of the step."""
    try:
        words = words_of(os.environ.get("INPUT_COMMAND", ""))
        accepted = accepted_codes(os.environ.get("INPUT_ACCEPT_EXIT_CODES", ""))
    except (Usage, ValueError) as error:
        sys.stderr.write(f"error: {error}\nhint: write it as in: command: audit --fail-on missing\n")
        return 2
    token = secrets.token_hex(16)
    on_github = "GITHUB_ACTIONS" in os.environ
    if on_github:  # until the token comes, GitHub executes no command that stands in the log
        sys.stdout.write(f"::stop-commands::{token}\n")
    code, output = run_command(words)
    if on_github:
        sys.stdout.write(f"::{token}::\n")
    run = next((match[1] for line in output.splitlines() if (match := RUN_LINE.match(line))), "")
    if outputs := os.environ.get("GITHUB_OUTPUT"):
        with Path(outputs).open("a", encoding="utf-8") as file:
            file.write(f"exit-code={code}\nrun={run}\n")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY") or os.environ.get("SUMMARY_FILE"):
        text = summary_of(words, code, output, accepted) + (report_of(run, words) if run else "")
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    return 0 if code in accepted else code


def words_of(command: str) -> list[str]:
    """Split a command as a shell would, without expanding anything."""
    words = shlex.split(command)
    if not words:
        raise Usage("command is empty")
    return words


def accepted_codes(text: str) -> set[int]:
    """Return the exit codes of a list such as `3,6`, and 0."""
    listed = [each.strip() for each in text.split(",") if each.strip()]
    if wrong := [each for each in listed if not (each.isascii() and each.isdecimal())]:
        raise Usage(f"accept-exit-codes: {wrong[0]!r} is not a number")
    return {0, *map(int, listed)}


def run_command(words: list[str]) -> tuple[int, str]:
    """Run the command; copy its streams to the log. Return its exit code, and its result with its error."""
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
    for number in (signal.SIGINT, signal.SIGTERM):  # the agent signals this process alone
        signal.signal(number, lambda *_: process.send_signal(signal.SIGINT))
    first, last = list[str](), deque[str](maxlen=MAX_LAST_LINES)
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
    other = threading.Thread(target=copy, args=(process.stderr, sys.stderr, last.append))
    other.start()
    room = MAX_OUTPUT

    def keep(text: str) -> None:
        nonlocal room
        room -= len(text)
        if room >= 0:
            first.append(text)

    copy(process.stdout, sys.stdout, keep)
    other.join()
    problem = (line[:MAX_LINE] for line in last if line.startswith(("error: ", "hint: ")))
    return process.wait(), "".join([*first, *problem])


def copy(source: object, target: TextIO, keep: Callable[[str], object]) -> None:
    """Copy lines without the marks of commands to the agent of Azure Pipelines. `keep` gets them as they are."""
    for line in source:  # type: ignore[attr-defined]
        text = line.decode("utf-8", "replace")
        target.write(text.replace("##vso[", "##-vso[").replace("##[", "##-["))
        target.flush()
        keep(text)


def summary_of(words: list[str], code: int, output: str, accepted: set[int]) -> str:
    """Return the result as a block of preformatted text, in which no markup is read."""
    text = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in output)
    shown = html.escape(f"$ sbpair {shlex.join(words)}\n{text}".rstrip("\n"), quote=False)
    mark, note = ("✅", ", which is accepted" if code else "") if code in accepted else ("❌", "")
    return f"### {mark} sbpair ended with exit code {code}{note}\n\n<pre>\n{shown}\n</pre>\n\n"


def report_of(run: str, words: list[str]) -> str:
    """Return the report of a run as Markdown; nothing if it cannot be had or is too large."""
    command = [*PROGRAM, "runs", "report", run, "--markdown", "-", *selection(words)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 and len(done.stdout) <= MAX_REPORT else ""


def selection(words: list[str]) -> list[str]:
    """Return the options among `words` that choose the pair and its state, with their values."""
    found: list[str] = []
    for place, word in enumerate(words):
        if word in SELECTIONS:
            found += words[place : place + 2]
        elif word.startswith(tuple(f"{option}=" for option in SELECTIONS)):
            found.append(word)
    return found


if __name__ == "__main__":
    sys.exit(main())
