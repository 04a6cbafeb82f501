"""`sbpair help`: shows the help of a command and its document: a README.md in a folder, or an upper-case file."""

import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from sbpair.cli.app import COMMANDS, PROGRAM, find_command
from sbpair.cli.options.common import Output, argument
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.errors import UsageError
from sbpair.operating_system import can_be_redrawn

SCHEMA = "sbpair/help/1"
FIRST = ("runbook", "architecture")


def _names() -> list[str]:
    return [*COMMANDS, *(topic for topic in all_documents() if topic not in COMMANDS)]


def command(
    *,
    name: list[str] | None = argument(
        "[COMMAND|TOPIC]", "Command, or topic such as runbook", complete=_names, default=None
    ),
    screen: Screen,
) -> int:
    """Show the help of a command, or a document such as the runbook.

    A command's help is followed by its document, if it has one. Formats Markdown on a terminal and prints it as it is
    elsewhere. Without a name, lists the topics.

    Examples:
      sbpair help replay run
      sbpair help runbook
    """
    known = all_documents()
    if not name:
        titles = {topic: title_of(document) for topic, document in known.items()}
        entries = [{"topic": topic, "title": title} for topic, title in titles.items()]
        screen.result(SCHEMA, {"topics": entries}, columns([("TOPIC", "TITLE"), *titles.items()]), entries)
        screen.say(f"show one with {PROGRAM} help TOPIC; for options see {PROGRAM} help COMMAND")
        return 0
    wanted, found = " ".join(name), find_command(name)
    if found is None and wanted not in known:
        hint = f"list the topics with {PROGRAM} help, and the commands with {PROGRAM} --help"
        raise UsageError(f"{wanted!r} is neither a command nor a topic", hint=hint)
    usage = found and found.get_help(found.context_class(found, info_name=f"{PROGRAM} {wanted}")).rstrip("\n")
    document = known[wanted].read_text("utf-8") if wanted in known else ""
    texts = list(filter(None, (usage, document)))
    screen.result(SCHEMA, {"name": wanted, "text": "\n\n".join(texts)}, [usage, ""][: len(texts)] if usage else [])
    if document and screen.output is Output.TABLE:
        _print(screen, document)
    return 0


def _print(screen: Screen, text: str) -> None:
    if sys.stdout is None or not can_be_redrawn(sys.stdout):
        screen.write(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


def all_documents() -> dict[str, Traversable]:
    """Return the documents by topic, the runbook and the architecture first."""
    found = dict(_documents(files("sbpair")))
    return {
        topic: found[topic] for topic in sorted(found, key=lambda topic: (topic not in FIRST, topic != FIRST[0], topic))
    }


def title_of(document: Traversable) -> str:
    """Return the first line, without its heading marks."""
    lines = (line.lstrip("# ").strip() for line in document.read_text("utf-8").splitlines())
    return next((line for line in lines if line), "")


def _documents(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        topic = above + each.name
        if each.is_dir():
            if (readme := each / "README.md").is_file():
                yield topic, readme
            yield from _documents(each, f"{topic}/")
        elif each.name.endswith(".md") and each.name != "README.md":
            yield topic.removesuffix(".md").lower(), each
