"""Sequence numbers as a user writes them; their mistakes are in tests/cli/refused.txt."""

from hypothesis import given
from hypothesis import strategies as st

from sbpair.model.sequence_ranges import MAX_SEQUENCE, SequenceRanges

NUMBERS = st.integers(0, 60) | st.integers(0, MAX_SEQUENCE)
PARTS = st.lists(st.tuples(NUMBERS, st.integers(0, 9)), min_size=1, max_size=20)


@given(PARTS, NUMBERS)
def test_ranges_include_the_numbers_of_their_parts(parts: list[tuple[int, int]], number: int) -> None:
    pairs = [(first, min(first + more, MAX_SEQUENCE)) for first, more in parts]
    text = ", ".join(f"{first}-{last}" if last > first else f"0{first} " for first, last in pairs)
    found = SequenceRanges.read(text)
    for each in (number, *(each + step for pair in pairs for each in pair for step in (-1, 0, 1))):
        assert (found.find(each) is not None) is any(first <= each <= last for first, last in pairs), text
    assert SequenceRanges.read(str(found)) == found
    assert all(last < first for last, first in zip(found.lasts, found.firsts[1:], strict=False))
