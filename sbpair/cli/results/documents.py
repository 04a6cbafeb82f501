"""Results of `sbpair help`, `man`, `schema`, `completions` and `version`."""

import platform
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, NamedTuple

from sbpair import __version__
from sbpair.model.document import document


class HelpTopic(NamedTuple):
    """A topic."""

    topic: Annotated[str, "Name of the topic"]
    title: Annotated[str, "Its title"]


@document("sbpair/help/1", "topics", summary="The topics that sbpair help lists; or the text of a command or topic.")
class HelpTopics:
    """The list. JSON Lines have one topic each."""

    topics: Annotated[tuple[HelpTopic, ...], "Topics"]


@document("sbpair/help/1")
class HelpText:
    """A text."""

    name: Annotated[str, "Command or topic"]
    text: Annotated[str, "Its help, and the document of that name, in Markdown"]


@document("sbpair/man/1", summary="The manual page that sbpair man prints, or the pages that it has stored.")
class ManualPage:
    """A page."""

    name: Annotated[str, "Command; empty for sbpair itself"]
    page: Annotated[str, "The page, in roff"]


@document("sbpair/man/1")
class StoredPages:
    """The stored pages."""

    pages: Annotated[tuple[Path, ...], "Files"]


class SchemaEntry(NamedTuple):
    """A schema."""

    name: Annotated[str, "Its name"]
    description: Annotated[str, "Its description"]


@document("sbpair/schemas/1", "schemas")
class SchemaList:
    """The schemas that sbpair schema prints. JSON Lines have one schema each."""

    schemas: Annotated[tuple[SchemaEntry, ...], "Schemas"]


@document("sbpair/completions/1")
class CompletionScript:
    """The completions that sbpair completions prints."""

    shell: Annotated[str, "Name of the shell"]
    script: Annotated[str, "Script that the shell evaluates"]


@document("sbpair/version/1")
class RunningVersion:
    """The versions that sbpair version prints."""

    commit: Annotated[str | None, "Commit that it was built from, with -dirty if files were changed; null if unknown"]
    commit_date: Annotated[str | None, "Date of that commit", {"examples": ["2026-11-23"]}]
    compiled: Annotated[bool, "Whether modules of sbpair are native code"]
    dependencies: Annotated[Mapping[str, str | None], "Versions of required and of installed optional packages"]
    version: Annotated[str, "Version of sbpair"] = __version__
    python: Annotated[str, "Version of Python"] = field(default_factory=platform.python_version)
    platform: Annotated[str, "Operating system"] = field(default_factory=platform.platform)
