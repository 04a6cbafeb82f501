"""A command of sbpair in a pipeline: its output in the log, its result and its report in the summary, its exit code.

Environment: INPUT_COMMAND, INPUT_ACCEPT_EXIT_CODES; GITHUB_STEP_SUMMARY and GITHUB_OUTPUT, or SUMMARY_FILE.
No shell reads a value. Texts of messages can neither command the pipeline's agent nor format the summary.
"""

from __future__ import annotations

import html
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
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

RECORDED = ("syphon", "move", "redrive", "replay")
"""Commands whose runs are recorded: other outputs than these two do not name their run."""

MAX_OUTPUT = 64 * 1024
MAX_LAST_LINES, MAX_LINE, MAX_DIGITS = 20, 1000, 3
MAX_REPORT = 512 * 1024
"""GitHub takes a summary of 1 MiB from a step."""


class Usage(Exception):
    """A wrong input of the step."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def main() -> int:
    """Run the command, write the summary, and return the exit code of the step."""
    try:
        words = words_of(os.environ.get("INPUT_COMMAND", ""))
        accepted = accepted_codes(os.environ.get("INPUT_ACCEPT_EXIT_CODES", ""))
    except (Usage, ValueError) as error:
        hint = getattr(error, "hint", "write it as in: command: audit --fail-on missing")
        text = f"error: {error}\nhint: {hint}\n"
        sys.stderr.write(text)
        summarize(f"### ❌ sbpair was not started\n\n<pre>\n{printable(text)}</pre>\n\n")
        return 2
    began = time.strftime("%y%m%d-%H%M%S", time.gmtime())
    token = secrets.token_hex(16)
    on_github = "GITHUB_ACTIONS" in os.environ
    if on_github:  # until the token comes, GitHub executes no command that stands in the log
        sys.stdout.write(f"::stop-commands::{token}\n")
    code, output, run = run_command(words)
    if on_github:
        sys.stdout.write(f"::{token}::\n")
    if not run and words[0] in RECORDED:
        run = latest_run(words, began)
    if outputs := os.environ.get("GITHUB_OUTPUT"):
        with Path(outputs).open("a", encoding="utf-8") as file:
            file.write(f"exit-code={code}\nrun={run}\n")
    summarize(summary_of(words, code, output, accepted) + (report_of(run, words) if run else ""))
    return 0 if code in accepted else code


def summarize(text: str) -> None:
    """Add a text to the summary of the job, if there is one."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY") or os.environ.get("SUMMARY_FILE"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)


def words_of(command: str) -> list[str]:
    """Split a command as a shell would, without expanding anything."""
    words = shlex.split(command)
    if not words:
        raise Usage("command is empty", "write it as in: command: audit --fail-on missing")
    if words[0] == "sbpair":
        raise Usage("command begins with the name of the program", f"leave it out: command: {shlex.join(words[1:])}")
    return words


def accepted_codes(text: str) -> set[int]:
    """Return the exit codes of a list such as `3,6`, and 0."""
    listed = [each.strip() for each in text.split(",") if each.strip()]
    if wrong := [each for each in listed if not (each.isascii() and each.isdecimal() and len(each) <= MAX_DIGITS)]:
        hint = "separate exit codes by commas, as in: accept-exit-codes: 3,6"
        raise Usage(f"accept-exit-codes: expected numbers such as 3, got {wrong[0]!r}", hint)
    return {0, *map(int, listed)}


def run_command(words: list[str]) -> tuple[int, str, str]:
    """Run the command; copy its streams to the log. Return its exit code, its result with its error, and its run."""
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
    for number in (signal.SIGINT, signal.SIGTERM):  # the agent signals this process alone
        signal.signal(number, lambda *_: process.send_signal(signal.SIGINT))
    first, last = list[str](), deque[str](maxlen=MAX_LAST_LINES)
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
    other = threading.Thread(target=copy, args=(process.stderr, sys.stderr, last.append))
    other.start()
    room, run = MAX_OUTPUT, ""

    def keep(text: str) -> None:
        nonlocal room, run
        run = run or (match[1] if (match := RUN_LINE.match(text)) else "")
        room -= len(text)
        if room >= 0:
            first.append(text)

    copy(process.stdout, sys.stdout, keep)
    other.join()
    lines = (line for each in last for line in plain(each).splitlines(keepends=True))
    problem = (line[:MAX_LINE] for line in lines if line.startswith(("error: ", "hint: ")))
    return process.wait(), "".join([*first, *problem]), run


def plain(line: str) -> str:
    """Return an error of --log-format json as the lines that it would have without; any other line as it is."""
    try:
        known = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return line
    if known.get("level") != "error":
        return line
    parts = ("error", known["message"]), ("hint", known.get("hint"))
    return "".join(f"{name}: {text}\n" for name, text in parts if text)


def latest_run(words: list[str], began: str) -> str:
    """Return the last run that was recorded since a time, as its id begins; "" if there is none."""
    command = [*PROGRAM, "runs", "list", "--output", "json", *selection(words)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    runs = json.loads(done.stdout)["runs"] if done.returncode == 0 else []
    return next((each["id"] for each in runs[:1] if each["id"] >= began), "")


def copy(source: object, target: TextIO, keep: Callable[[str], object]) -> None:
    """Copy lines without the marks of commands to the agent of Azure Pipelines. `keep` gets them as they are."""
    for line in source:  # type: ignore[attr-defined]
        text = line.decode("utf-8", "replace")
        target.write(text.replace("##vso[", "##-vso[").replace("##[", "##-["))
        target.flush()
        keep(text)


def summary_of(words: list[str], code: int, output: str, accepted: set[int]) -> str:
    """Return the result as a block of preformatted text, in which no markup is read."""
    shown = printable(f"$ sbpair {shlex.join(words)}\n{output}".rstrip("\n"))
    mark, note = ("✅", ", which is accepted" if code else "") if code in accepted else ("❌", "")
    return f"### {mark} sbpair ended with exit code {code}{note}\n\n<pre>\n{shown}\n</pre>\n\n"


def printable(text: str) -> str:
    """Return a text without control characters and markup."""
    return html.escape("".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text), quote=False)


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
