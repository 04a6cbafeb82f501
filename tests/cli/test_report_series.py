"""Curves of a report: what is not known between two samples, and what is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.cli.report.plots import plots_of, timeline_rows, value_at
from sbpair.runs.run_log import MAX_DESTINATIONS, Figures, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbpair.cli.report.plots import Plot

END = 100_000


def sample(second: int, destinations: Mapping[str, int], **counts: int) -> Sample:
    return Sample(1_000 * second, Figures(counts, destinations))


def plotted(title: str, *samples: Sample) -> Plot:
    [found] = [plot for plot in plots_of(0, END, samples) if plot.title == title]
    return found


def rates(plot: Plot, label: str) -> list[tuple[int, float]]:
    [curve] = [curve for curve in plot.curves if curve.label == label]
    return [(at_ms, value) for at_ms, value in curve.points if value is not None]


def test_destination_has_no_throughput_before_its_first_message() -> None:
    samples = [sample(second, {"orders": second}) for second in range(2, 60, 2)]
    samples += [sample(second, {"orders": 60, "invoices": 10 * (second - 58)}) for second in range(60, 102, 2)]
    plot = plotted("Throughput by destination", *samples)
    assert all(value_at(rates(plot, "invoices"), at_ms) < 0.001 for at_ms in range(0, 56_000, 2_000))
    assert round(value_at(rates(plot, "invoices"), 80_000), 3) == 10.0


def test_destination_that_a_full_sample_lacks_is_not_said_to_have_had_none() -> None:
    many = {f"q{number}": 9 for number in range(MAX_DESTINATIONS)}
    later = {**dict(list(many.items())[1:]), "late": 50}
    plot = plotted("Throughput by destination", *(sample(at, many if at < 50 else later) for at in range(0, 102, 2)))
    assert round(plot.peaks["late"], 1) == 1.0  # 50 in 50 seconds


def test_counter_that_later_samples_lack_stays_as_it_is() -> None:
    drained = [sample(second, {}, received=second) for second in (1, 11)]
    sent = [sample(second, {}, sent=second - 50) for second in (51, 61, 100)]
    plot = plotted("Messages", *drained, *sent)
    assert rates(plot, "received")[-1] == (END, 11.0)
    assert value_at(rates(plot, "sent"), 40_000) < 1.0
    found = timeline_rows(0, END, [*drained, *sent])
    assert found is not None
    assert found[1][-1][1:3] == (11, 50)
