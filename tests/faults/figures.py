"""The figures of a campaign by kind: a file that is written after every round, and the table of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Final

MAX_FINDINGS: Final = 100
PEAKS: Final = ("peak_mb", "peak_log", "longest_s")


@dataclass
class Figures:
    """Sums of rounds. `unnamed` are duplicates that no receipt names, `late` messages that others overtook.

    `other` counts everything else that must not be: an unexpected exit code, a command without end, a secret or a
    control character in an output, a port that does not answer. `peak_mb` is memory of a command and its children,
    `peak_log` bytes of its log. `let_in` are requests that a server should have refused, `left` what was left behind.
    """

    rounds: int = 0
    messages: int = 0
    lost: int = 0
    altered: int = 0
    unnamed: int = 0
    late: int = 0
    tracebacks: int = 0
    other: int = 0
    let_in: int = 0
    left: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0
    peak_log: int = 0
    longest_s: float = 0.0
    findings: list[str] = field(default_factory=list)

    def find(self, column: str, text: str, times: int = 1) -> None:
        """Count a finding, and keep its text."""
        setattr(self, column, getattr(self, column) + times)
        self.findings.append(f"{column} {times}: {text}"[:2_000])

    def add(self, other: Figures) -> None:
        for each in fields(self):
            ours, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(ours, theirs) if each.name in PEAKS else ours + theirs)
        del self.findings[MAX_FINDINGS:]

    @property
    def wrong(self) -> int:
        return self.lost + self.altered + self.unnamed + self.let_in + self.tracebacks + self.other


class Table:
    """The figures of each kind. The file of an interrupted campaign is continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kinds: dict[str, Figures] = {}
        if path.exists():
            self.kinds = {kind: Figures(**each) for kind, each in json.loads(path.read_text()).items()}

    def of(self, kind: str) -> Figures:
        return self.kinds.setdefault(kind, Figures())

    def add(self, kind: str, figures: Figures) -> None:
        self.of(kind).add(figures)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps({kind: asdict(each) for kind, each in self.kinds.items()}, indent=1) + "\n")
        beside.replace(self._path)

    def __str__(self) -> str:
        kinds = {kind: asdict(replace(each, findings=[])) for kind, each in self.kinds.items()}
        return "\n".join(f"{kind}: {figures}" for kind, figures in kinds.items())
