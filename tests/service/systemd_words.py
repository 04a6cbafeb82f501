"""The words of a command line in a unit, as systemd.service(5) and systemd.syntax(7) describe them."""

from __future__ import annotations

import re

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPE = re.compile(r'\\(?:U([0-9a-f]{8})|(["\\]))')


def split_words(line: str) -> list[str]:
    """Split a line into words, and resolve escapes, specifiers and dollar signs."""
    words = []
    for match in _WORD.finditer(line):
        text = match[2] or _ESCAPE.sub(lambda each: each[2] or chr(int(each[1], 16)), match[1] or "")
        assert not re.search(r"%[^%]|\$[^$]", re.sub(r"%%|\$\$", "", text)), text
        words.append(text.replace("%%", "%").replace("$$", "$"))
    return words
