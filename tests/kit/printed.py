"""The commands that a text tells to run."""

import re
from collections.abc import Iterator

from sbpair.cli.app import COMMANDS

WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
PROSE = ("by ", "of ", "that ", "usage: ")
"""Before the name of a command that a text is about, and does not tell to run."""


def commands_in(text: str) -> Iterator[str]:
    """Yield the commands that a text tells to run: each ends at a mark such as a semicolon, or with the line."""
    for found in re.finditer(r"(?<![\w/.-])sbpair (?=[a-z])", text):
        before, rest = text[: found.start()].splitlines()[-1:], text[found.end() :].partition("\n")[0]
        if not before or not before[0] or before[0].endswith(PROSE):
            continue
        words = list[str]()
        for word in WORD.findall(rest):
            words.append(word.rstrip(";,:).`"))
            if word != words[-1]:
                break
        if words and words[0] in COMMANDS:
            yield " ".join(words)
