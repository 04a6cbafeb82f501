"""`sbpair help`, `man`, `schema`, `completions` and `version`: what the package has about itself."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from sbpair import __version__
from sbpair.cli.app import COMMANDS, PROGRAM, find_command
from sbpair.cli.man_page import FOLDER, man_page, page_paths, write_pages
from sbpair.cli.options.common import Output, argument, flag, option
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.cli.results.documents import (
    CompletionScript,
    HelpText,
    HelpTopic,
    HelpTopics,
    ManualPage,
    RunningVersion,
    SchemaEntry,
    SchemaList,
    StoredPages,
)
from sbpair.errors import MachineLacks, UsageError, nearest_hint
from sbpair.model.installation import built_from, is_compiled, requirements
from sbpair.operating_system import can_be_redrawn
from sbpair.operating_system import files as files_of_user

FIRST = ("runbook", "architecture")
SCHEMA_PREFIX, SCHEMA_VERSION = "sbpair/", "/1"
SCRIPTS = {"bash": "sbpair.bash", "zsh": "_sbpair", "fish": "sbpair.fish", "powershell": "sbpair.ps1"}
"""The file of each shell: in this package if it was built, and else at the top of the checkout."""


def _topics() -> list[str]:
    return [*COMMANDS, *(topic for topic in all_documents() if topic not in COMMANDS)]


def _commands() -> list[str]:
    return [path[0] for path in page_paths() if len(path) == 1]


def _shells() -> list[str]:
    return list(SCRIPTS)


def help_command(
    *,
    name: list[str] | None = argument(
        "[COMMAND|TOPIC]", "Command, or topic such as runbook", complete=_topics, default=None
    ),
    no_pager: bool = flag("--no-pager", "Print a document at once, not page by page with $PAGER"),
    screen: Screen,
) -> int:
    """Show the help of a command, or a document such as the runbook.

    A command's help is followed by its document, if it has one. Formats Markdown on a terminal, with its contents
    first, page by page, and prints it as it is elsewhere. Without a name, lists the topics.

    Examples:
      sbpair help replay run
      sbpair help runbook
    """
    known = all_documents()
    if not name:
        topics = tuple(HelpTopic(topic, title_of(text)) for topic, text in known.items())
        screen.show(HelpTopics(topics), columns([("TOPIC", "TITLE"), *topics]))
        screen.say(f"show one with {PROGRAM} help TOPIC; for options see {PROGRAM} help COMMAND")
        return 0
    wanted, found = " ".join(name), find_command(name)
    if found is None and wanted.lower() in known:  # RUNBOOK, as the documents have it
        wanted = wanted.lower()
    if found is None and wanted not in known:
        hint = f"list the topics with {PROGRAM} help, and the commands with {PROGRAM} --help"
        raise UsageError(f"{wanted!r} is neither a command nor a topic", hint=nearest_hint(wanted, _topics(), hint))
    usage = found and found.get_help(found.context_class(found, info_name=f"{PROGRAM} {wanted}")).rstrip("\n")
    text = known[wanted].read_text("utf-8") if wanted in known else ""
    texts = list(filter(None, (usage, text)))
    screen.show(HelpText(wanted, "\n\n".join(texts)), [usage, ""][: len(texts)] if usage else [])
    if text and screen.output is Output.TABLE:
        _print(screen, text, paged=not no_pager and os.environ.get("PAGER") != "")
    return 0


def _print(screen: Screen, text: str, *, paged: bool) -> None:
    if sys.stdout is None or not can_be_redrawn(sys.stdout):
        screen.write(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "FRX")  # colours, and no pages for less than a screen
    console, (title, _, rest) = Console(), text.partition("\n")
    contents = "".join(f"- {each}\n" for each in re.findall(r"^## (.*)", rest, re.MULTILINE))
    listed = "\n- [" in rest.partition("\n## ")[0]  # its own table of contents
    with console.pager(styles=True) if paged else nullcontext():
        console.print(Markdown(text if listed else f"{title}\n\n{contents}\n{rest}"))


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
        if each.is_dir() and each.name != "templates":
            if (readme := each / "README.md").is_file():
                yield topic, readme
            yield from _documents(each, f"{topic}/")
        elif each.name.endswith(".md") and each.name != "README.md":
            yield topic.removesuffix(".md").lower(), each


def man_command(
    *,
    name: list[str] | None = argument("[COMMAND]", "Command, such as replay run", complete=_commands, default=None),
    directory: Path | None = option("--directory DIR", f"Write all pages to {FOLDER} in this directory"),
    screen: Screen,
) -> int:
    """Print the manual page of a command, in roff.

    Without COMMAND, prints the page of sbpair itself. The wheel installs all pages in share/man, and pipx links them.
    If man does not find them there, --directory stores them where it does.

    Examples:
      sbpair man replay run | man -l -
      sbpair man --directory ~/.local/share/man

    Exit codes: 2 no such command; 7 a page cannot be written

    See also: sbpair completions --help
    """
    commit = built_from()
    date = commit.date if commit else ""
    if directory is not None:
        if name:
            raise UsageError("--directory stores the pages of all commands", hint="leave out COMMAND, or --directory")
        pages = _stored(directory / FOLDER, date)
        screen.show(StoredPages(tuple(pages)), [f"{len(pages)} pages in {pages[0].parent}"])
        return 0
    path = tuple(name or ())
    if path and find_command(path) is None:
        raise UsageError(f"{' '.join(path)!r} is not a command", hint=f"list the commands with {PROGRAM} --help")
    page = man_page(path, date)
    screen.show(ManualPage(" ".join(path), page), [page.rstrip("\n")])
    return 0


def _stored(folder: Path, date: str) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_pages(folder, date)
    except OSError as error:
        raise MachineLacks(
            f"the manual pages cannot be written to {folder}: {error.strerror}", hint="choose another --directory"
        ) from error


def schema_command(
    *,
    name: str | None = argument("[NAME]", "Name of a schema, such as sbpair/audit/1 or audit", default=None),
    screen: Screen,
) -> int:
    """Print the JSON Schema of an output document or event line.

    The key "schema" of each document and event names its schema (draft 2020-12). Without NAME, prints the names.

    Examples:
      sbpair schema
      sbpair schema syphon-event > syphon-event.schema.json
    """
    from sbpair.cli.schemas import all_schemas, find_schema

    if name is None:
        known = all_schemas()
        entries = tuple(SchemaEntry(each, known[each]["description"]) for each in sorted(known))
        rows = [(each.name, each.description.partition(". ")[0]) for each in entries]
        screen.show(SchemaList(entries), columns([("NAME", "DESCRIPTION"), *rows]))
        return 0
    found = find_schema(f"{SCHEMA_PREFIX}{name}{SCHEMA_VERSION}") or find_schema(name)
    if found is None:
        full = (name, *all_schemas())
        bare, *names = (each.removeprefix(SCHEMA_PREFIX).removesuffix(SCHEMA_VERSION) for each in full)
        hint = nearest_hint(bare, names, "list the names with sbpair schema")
        raise UsageError(f"{name!r} is not a schema", hint=hint)
    screen.write_value(found, indent=2)
    return 0


def completions_command(
    *,
    shell: str | None = argument(
        "[SHELL]", "bash, zsh, fish or powershell [default: that of $SHELL]", complete=_shells, default=None
    ),
    install: bool = flag("--install", "Store it where the shell looks for your own; edits no other file"),
    screen: Screen,
) -> int:
    """Print the script that completes commands and names in a shell.

    The wheel installs the scripts of bash, zsh and fish in share/. If the shell does not look there, --install stores
    the script in your own directory of completions. PowerShell has none: add the output to $PROFILE.

    Examples:
      sbpair completions --install
      sbpair completions zsh > ~/.zfunc/_sbpair   # with ~/.zfunc in fpath
      sbpair completions powershell >> $PROFILE

    See also: sbpair man --help
    """
    shell = Path(os.environ.get("SHELL", "")).name if shell is None else shell
    if shell not in SCRIPTS:
        raise UsageError(f"there are no completions for {shell!r}", hint=f"choose one of {', '.join(SCRIPTS)}")
    script, shown = _shipped_script(shell), ""
    if install:
        shown = _install(shell, script)
        screen.say(
            "a new shell reads it" + (f", with fpath+=({Path(shown).parent}) before compinit" * (shell == "zsh"))
        )
    screen.show(CompletionScript(shell, script), [shown or script.rstrip("\n")])
    return 0


def _install(shell: str, script: str) -> str:
    """Store a script where its shell looks for the user's own. Returns the path. Raises UsageError, MachineLacks."""
    if (path := files_of_user.completion_file(shell, os.environ)) is None:
        hint = "leave --install out, and add the output to $PROFILE"
        raise UsageError(f"{shell} has no directory of completions", hint=hint)
    try:
        files_of_user.make_directories(path.parent)
    except OSError as error:
        raise MachineLacks(f"{path.parent} cannot be made: {error.strerror}", hint="see its permissions") from error
    with files_of_user.replaced_file(str(path), 0o644) as file:
        file.write_text(script, "utf-8")
    return str(path)


def _shipped_script(shell: str) -> str:
    """Return the script that lets a shell of SCRIPTS complete. Raises MachineLacks if its file is missing."""
    folders = (files("sbpair.cli") / "completions", Path(__file__).parents[3] / "completions")
    for file in (folder / SCRIPTS[shell] for folder in folders):
        if file.is_file():
            return file.read_text("utf-8")
    raise MachineLacks(f"this installation has no completions for {shell}", hint="install the wheel of sbpair again")


def version_command(*, screen: Screen) -> int:
    """Print the versions of sbpair, Python and required packages.

    The commit is that of the build, or of the checkout; -dirty after it means changed files. A package that is not
    installed has no version; those of extras, and of other systems, are shown only if they are installed.

    Examples:
      sbpair version
      sbpair version -o json
    """
    commit, compiled = built_from(), is_compiled()
    needed = {each.name: each.installed for each in requirements() if each.everywhere or each.installed}
    found = RunningVersion(
        commit.id if commit else None,
        commit.date if commit else None,
        compiled=compiled,
        dependencies=dict(sorted(needed.items())),
    )
    rows = [("PACKAGE", "VERSION"), *((name, version or "-") for name, version in sorted(needed.items()))]
    source = f"commit {commit.id} of {commit.date}" if commit else "unknown commit"
    lines = [f"{PROGRAM} {__version__}", source + (", compiled" if compiled else ""), f"Python {found.python}"]
    screen.show(found, [*lines, found.platform, *columns(rows)][: None if needed else 4])
    return 0
