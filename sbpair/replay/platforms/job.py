"""A replay to define as a job, and what a platform is.

Invariant: a definition names secrets, and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sbpair.replay.spark import PLATFORM, SETTINGS

NAME = "sbpair-replay"
MAIN, PACKAGE, REQUIREMENTS, COMMANDS = "main.py", "sbpair.zip", "requirements.txt", "README.md"

REDACTED = "(?i)secret|password|token|access[.]?key|connection_string|proxy"
"""The names of settings whose values Spark hides in its pages and logs."""

Files = dict[str, str | dict[str, Any]]
"""Files of a job by name, as text or as a document."""


@dataclass(frozen=True, slots=True)
class Job:
    """A replay to define. `environment` is open; `secrets` are variables whose values the platform keeps.

    `vault` is the Azure Key Vault with the secrets, on a platform that needs one.
    """

    name: str
    archive: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    requirements: tuple[str, ...]
    queues: int
    vault: str = ""

    @property
    def code(self) -> str:
        """The URL of the job's files, beside the archive."""
        return f"{self.archive}-job"

    def arguments(self, package: str | None = None) -> list[str]:
        """Return the words of the command line."""
        words = ["replay", "run", "--archive", self.archive, "--master", PLATFORM, "--count", str(self.queues)]
        words += ["--output", "json", "--quiet"]
        return [*words, "--package", package] if package else words

    def settings(self) -> dict[str, str]:
        """Return Spark's settings, which are also in force where Spark starts before the job does."""
        return {**SETTINGS, "spark.redaction.regex": REDACTED}

    def secret_files(self) -> str:
        """Return a paragraph about the files that commands read secrets from, "" without secrets."""
        return VALUE_FILES if self.secrets else ""

    def commands(self) -> str:
        """Return the commands that are the same everywhere."""
        return COMMON.format(archive=self.archive, requirements=REQUIREMENTS)


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform: the names and archives that it accepts, and the job's files by name.

    `requirements` and `secrets` are those that its jobs need besides the others.
    """

    title: str
    schemes: tuple[str, ...]
    name: str
    name_rule: str
    files: Callable[[Job], Files]
    requirements: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    needs_vault: bool = False


VALUE_FILES = """Each `NAME.txt` below has the value of that variable: write it with mode 0600, and delete it later.

"""
COMMON = """
The job archives the backlog, sends it and proves the result. From any machine that reads the archive:

```sh
sbpair replay list --archive {archive}
sbpair replay status RUN --archive {archive}
sbpair replay stop RUN --archive {archive}      # its tasks finish the messages they hold
sbpair replay verify RUN --archive {archive}
```

To continue a stopped run, replace the words `replay run` of the definition by `replay resume RUN`, leave out `--count`,
and submit it again. Other options of `sbpair replay run` are words of the definition, too.
`{requirements}` has the packages that `sbpair.zip` cannot have.
"""
