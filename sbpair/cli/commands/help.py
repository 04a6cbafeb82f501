"""`sbpair help`: shows a document of the package: a README.md in a folder, or an upper-case file at the top."""

import os
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from sbpair.cli.app import COMMANDS, PROGRAM
from sbpair.cli.options.common import Display, argument, options
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.errors import UsageError

FIRST = ("runbook", "architecture")


def _topics() -> list[str]:
    return list(all_documents())


@options
def command(
    *,
    topic: Annotated[str | None, argument("[TOPIC]", "Topic, such as runbook or syphon", complete=_topics)] = None,
    display: Display,
) -> int:
    """Show a document: the runbook, the architecture or a topic.

    Formats Markdown on a terminal and prints it as it is elsewhere. Without TOPIC, lists the topics.

    Examples:
      sbpair help
      sbpair help runbook
    """
    screen = Screen(display)
    known = all_documents()
    if topic is None:
        rows = [(name, title_of(document)) for name, document in known.items()]
        for line in columns([("TOPIC", "TITLE"), *rows]):
            screen.write(line)
        screen.say(f"show one with {PROGRAM} help TOPIC; for options see {PROGRAM} COMMAND --help")
        return 0
    if topic not in known:
        if topic in COMMANDS:
            raise UsageError(f"{topic} has no document", hint=f"see {PROGRAM} {topic} --help")
        raise UsageError(f"{topic!r} is not a topic", hint=f"expected one of {', '.join(known)}")
    _print(screen, known[topic].read_text("utf-8"))
    if topic in COMMANDS:
        screen.say(f"for the options of the command see {PROGRAM} {topic} --help")
    return 0


def _print(screen: Screen, text: str) -> None:
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        screen.write(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


def all_documents() -> dict[str, Traversable]:
    """Return the documents by topic, the runbook and the architecture first."""
    found = dict(_documents())
    return {
        topic: found[topic] for topic in sorted(found, key=lambda topic: (topic not in FIRST, topic != FIRST[0], topic))
    }


def title_of(document: Traversable) -> str:
    """Return the first line, without its heading marks."""
    lines = (line.lstrip("# ").strip() for line in document.read_text("utf-8").splitlines())
    return next((line for line in lines if line), "")


def _documents() -> Iterator[tuple[str, Traversable]]:
    for each in files("sbpair").iterdir():
        if each.is_dir() and (readme := each / "README.md").is_file():
            yield each.name, readme
        elif each.name.endswith(".md"):
            yield each.name.removesuffix(".md").lower(), each
