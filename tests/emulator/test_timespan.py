"""Durations parsed and formatted to the tick, as .NET does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import timespan
from sbpair.timespan import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_SECOND


@given(st.integers(-MAX_TICKS - 1, MAX_TICKS))
def test_a_formatted_duration_parses_to_the_same_tick(ticks) -> None:
    assert timespan.parse(timespan.show(ticks)) == ticks


@pytest.mark.parametrize(
    ("ticks", "text"),
    [
        (MAX_TICKS, "P10675199DT2H48M5.4775807S"),
        (-MAX_TICKS - 1, "-P10675199DT2H48M5.4775808S"),
        (0, "PT0S"),
        (60 * TICKS_PER_SECOND, "PT1M"),
        (90 * TICKS_PER_SECOND, "PT1M30S"),
        (14 * TICKS_PER_DAY, "P14D"),
        (TICKS_PER_DAY + TICKS_PER_SECOND // 2, "P1DT0.5S"),
        (1, "PT0.0000001S"),
    ],
)
def test_durations_have_the_services_form(ticks, text) -> None:
    assert timespan.show(ticks) == text
    assert timespan.parse(text) == ticks


@pytest.mark.parametrize(
    ("text", "same"), [("PT300S", "PT5M"), ("P1Y", "P365D"), ("P1M", "P30D"), ("PT36H", "P1DT12H"), (" PT1M ", "PT1M")]
)
def test_other_forms_of_a_duration_are_accepted(text, same) -> None:
    assert timespan.show(timespan.parse(text)) == same


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "1M", "PT1", "PT-1M", "P1H", "PT1M1H", "PT1.5M", "60", "00:01:00", "P" + "9" * 40 + "D",
     "PT1\n\u0661S"],
)  # fmt: skip
def test_an_invalid_duration_is_refused(text) -> None:
    with pytest.raises(ValueError, match="duration"):
        timespan.parse(text)


@pytest.mark.parametrize("text", ["P10675199DT2H48M5.4775808S", "P10675199DT2H48M5.477581S", "P10675200D"])
def test_a_duration_beyond_timespan_is_refused(text) -> None:
    with pytest.raises(ValueError, match="TimeSpan"):
        timespan.parse(text)
