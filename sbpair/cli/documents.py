"""The Markdown documents in the package: a README.md in a folder, or an upper-case file at the top."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

FIRST = ("runbook", "architecture")


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
