"""`sbpair man`: prints the manual page of a command, or stores all pages in a folder."""

from pathlib import Path

from sbpair.cli.app import PROGRAM, find_command
from sbpair.cli.man_page import FOLDER, man_page, page_paths, write_pages
from sbpair.cli.options.common import argument, option
from sbpair.cli.render.screen import Screen
from sbpair.errors import MachineLacks, UsageError
from sbpair.model.installation import built_from


def _commands() -> list[str]:
    return [path[0] for path in page_paths() if len(path) == 1]


def command(
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
        screen.result(
            "sbpair/man/1", {"pages": [str(page) for page in pages]}, [f"{len(pages)} pages in {pages[0].parent}"]
        )
        return 0
    path = tuple(name or ())
    if path and find_command(path) is None:
        raise UsageError(f"{' '.join(path)!r} is not a command", hint=f"list the commands with {PROGRAM} --help")
    page = man_page(path, date)
    screen.result("sbpair/man/1", {"name": " ".join(path), "page": page}, [page.rstrip("\n")])
    return 0


def _stored(folder: Path, date: str) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_pages(folder, date)
    except OSError as error:
        raise MachineLacks(
            f"the manual pages cannot be written to {folder}: {error.strerror}", hint="choose another --directory"
        ) from error
