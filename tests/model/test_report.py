"""Outcomes as data, and the exit code that follows."""

import pytest

from sbpair.model.report import Outcome, Report, ReportItem


def report(*outcomes: tuple[Outcome, int]) -> Report[None]:
    return Report(tuple(ReportItem(str(at), outcome, exit_code=code) for at, (outcome, code) in enumerate(outcomes)))


OK, CREATED, DRIFTED = (Outcome.OK, 0), (Outcome.CREATED, 0), (Outcome.DRIFTED, 0)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 0),
        ([OK, CREATED], 0),
        ([OK, DRIFTED], 3),
        ([CREATED, (Outcome.FAILED, 6)], 3),
        ([(Outcome.FAILED, 6), (Outcome.FAILED, 6)], 6),
        ([(Outcome.FAILED, 6), (Outcome.FAILED, 2)], 3),
        ([(Outcome.FAILED, 0)], 3),
    ],
)
def test_the_exit_code_follows_from_the_outcomes(outcomes: list[tuple[Outcome, int]], code: int) -> None:
    assert report(*outcomes).exit_code_for({Outcome.DRIFTED}) == code
    assert report(DRIFTED).exit_code_for() == 0
