"""XML of a peer as a tree, within limits of size, depth and number of elements: a hostile answer costs little.

Invariant: a document type declaration is refused, so that no entity expands.
"""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

MAX_BYTES: Final = 4 * 1024 * 1024
"""A page of a hundred descriptions has a third of a megabyte."""

MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 100_000
_PART: Final = 64 * 1024


class _BoundedBuilder(TreeBuilder):
    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"the elements are nested deeper than {MAX_DEPTH}")
        if self._elements > MAX_ELEMENTS:
            raise ValueError(f"there are more than {MAX_ELEMENTS} elements")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, *_: object) -> None:
        raise ValueError("a document type declaration is not allowed")


def parse_xml(data: bytes) -> Element:
    """Return the root of a document. Raises ValueError for one that is not well-formed or exceeds the limits."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"the document is larger than {MAX_BYTES} bytes")
    parser = XMLParser(target=_BoundedBuilder())  # noqa: S314  # its target refuses what could expand
    try:
        # In parts: after an error in one, expat does not read the others.
        for start in range(0, len(data), _PART):
            parser.feed(data[start : start + _PART])
        root = parser.close()
    except (ParseError, LookupError) as error:
        raise ValueError(f"not well-formed XML: {error}") from error
    assert isinstance(root, Element)  # noqa: S101  # what a TreeBuilder's close returns
    return root
