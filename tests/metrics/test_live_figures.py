"""The figures of a run, in the formats of Prometheus, read by its parsers; and the README of the metrics."""

import re
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import sbpair
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.metrics.live_figures import MAX_DESTINATIONS, OTHERS, LiveFigures
from sbpair.metrics.run_metrics import renderer
from sbpair.move import events
from sbpair.move.receipt import BUCKETS, SPENT, NamedMessage, Receipt
from sbpair.syphon.run_store import LiveRun
from tests.kit.command import run_program
from tests.syphon.worlds import World, fill, world

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
QUEUE = "contoso/x-servicebus-transfer/0"

Series = dict[str, dict[str, float]]


def read(figures: LiveFigures) -> Series:
    """Return the value of each sample by name and label, which both parsers read alike."""
    render = renderer(figures)
    plain, plain_type, _ = render("")
    exact, exact_type, _ = render(OPEN_METRICS)
    assert plain_type.startswith("text/plain")
    assert exact_type.startswith("application/openmetrics-text")
    found = [
        _samples(text_string_to_metric_families(plain.decode())),
        _samples(openmetrics.text_string_to_metric_families(exact.decode())),
    ]
    assert found[0] == found[1]
    return found[0]


def _samples(families: Any) -> Series:
    found: Series = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name.startswith("sbpair_") and sample.name != "sbpair_run_info":
            [label] = sample.labels.values() or [""]
            assert label not in found.setdefault(sample.name, {})
            found[sample.name][label] = sample.value
    return found


def run_of(w: World, **more: Any) -> tuple[LiveFigures, dict[str, Any]]:
    """Return the figures of a run that is still to begin, at this time, and the arguments that it takes for them."""
    at_ms = w.emulator.clock.now_ms()
    figures = LiveFigures(live := LiveRun(), {"command": "syphon --once"}, clock_ms=lambda: at_ms)
    return figures, {"live": live, "sample_seconds": 0.01, **more}


def check_equal(found: Series, receipt: Receipt) -> None:
    """Assert that the figures are those of a receipt."""
    document = asdict(receipt)
    for bucket in ("received", *BUCKETS):
        by_queue = {queue: counts[bucket] for queue, counts in receipt.queues.items() if counts[bucket]}
        series = {queue: value for queue, value in found[f"sbpair_messages_{bucket}_total"].items() if value}
        assert (bucket, series) == (bucket, by_queue)
    spellings: Counter[str] = Counter()  # of one destination are one series
    for path, count in receipt.destinations.items():
        spellings[path.lower()] += count
    assert {path.lower(): value for path, value in found["sbpair_destination_messages_sent_total"].items()} == spellings
    assert found["sbpair_sent_bytes_total"] == {"": receipt.bytes_sent}
    assert found.get("sbpair_dead_letters_total", {}) == receipt.dead_letter_reasons
    assert found["sbpair_operations_total"] == {name: document["operations"][name] for name in SPENT}


async def test_the_figures_at_the_end_are_those_of_the_receipt() -> None:
    async with world(2, "orders", "billing/invoices") as w:
        figures, terms = run_of(w, credits=500.0)
        w.strand(*range(30))
        w.strand(*range(30, 45), to="ORDERS", index=1)
        w.strand(*range(50, 57), to="billing/invoices", index=1)
        w.strand(60, 61, to="missing")
        result = await w.run(**terms)
        assert (result.receipt.sent, result.receipt.dead_lettered) == (52, 2)
        found = read(figures)
        check_equal(found, result.receipt)
        assert found["sbpair_queue_messages"] == {QUEUE: 0, QUEUE[:-1] + "1": 0}
        assert found["sbpair_queue_oldest_message_age_seconds"] == {QUEUE: 0, QUEUE[:-1] + "1": 0}
        assert found["sbpair_credits_spent_total"]["primary"] >= 52
        assert found["sbpair_credits_spent_total"]["secondary"] >= 54


async def test_a_destination_that_takes_nothing_has_a_circuit_and_an_age() -> None:
    async with world(1, "orders", "full") as w:
        room = fill(w.destination("full"))
        w.strand(*range(6), to="full")
        w.emulator.advance(5_000)
        figures, terms = run_of(w)
        async with w.watching(**terms) as task:
            await w.told_of(events.DestinationProgress, lambda at: (at.destination, at.waiting) == ("full", 6))
            await w.told_of(events.QueueDepths, lambda at: at.messages == 6 and at.oldest_ms is not None)
            found = read(figures)
            assert found["sbpair_destination_backing_off"] == {"full": 1}
            assert found["sbpair_destination_backoffs_total"]["full"] >= 1
            assert found["sbpair_destination_messages_waiting"] == {"full": 6}
            assert (found["sbpair_queue_messages"], found["sbpair_queue_messages_held"]) == ({QUEUE: 6}, {QUEUE: 6})
            assert found["sbpair_queue_oldest_message_age_seconds"][QUEUE] >= 5
            room()
            await w.told_of(events.DestinationProgress, lambda at: (at.sent, at.waiting) == (6, 0))
            await w.told_of(events.DestinationRecovered)
            assert read(figures)["sbpair_destination_backing_off"] == {"full": 0}
        check_equal(read(figures), task.result().receipt)


async def test_without_manage_there_is_no_depth_and_no_credits_without_a_limit() -> None:
    async with world() as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.strand(1)
        figures, terms = run_of(w)
        await w.run(**terms)
        found = read(figures)
        assert found["sbpair_messages_sent_total"] == {QUEUE: 1}
        assert {"sbpair_queue_messages", "sbpair_credits_spent_total"} & {*found} == set()


def test_a_side_is_away_until_a_queue_is_opened() -> None:
    figures = LiveFigures(live := LiveRun(), {})
    live.state.take(events.QueuesFound((QUEUE,), (), managed=True))
    live.state.take(events.QueueProgress(QUEUE, 9, 4, 5))
    live.state.take(events.DestinationBackingOff(QUEUE, "orders", "full", 1.0, 5))
    live.state.take(events.QueueFailed(QUEUE, "lost", 1.0, 1, "primary"))
    found = read(figures)
    assert found["sbpair_side_away"] == {"primary": 1, "secondary": 0}
    assert [found[f"sbpair_messages_{bucket}_total"] for bucket in ("received", *BUCKETS)] == [{QUEUE: 0}] * 8
    assert (found["sbpair_queue_failures_total"], found["sbpair_queue_messages_held"]) == ({QUEUE: 1}, {QUEUE: 0})
    assert found["sbpair_destination_backing_off"] == {"orders": 0}
    live.state.take(events.QueueOpened(QUEUE))
    assert read(figures)["sbpair_side_away"] == {"primary": 0, "secondary": 0}
    live.state.take(events.QueueFailed(QUEUE, "lost", 1.0, 1, "secondary"))
    live.state.take(events.QueueFailed(QUEUE, "not found", None))
    assert read(figures)["sbpair_side_away"] == {"primary": 0, "secondary": 0}


def test_a_run_is_paused_until_it_is_resumed() -> None:
    figures = LiveFigures(live := LiveRun(), {})
    seen = []
    for event in (events.RunPausing("r"), events.RunPaused("r"), events.RunResumed("r")):
        live.state.take(event)
        seen.append(read(figures)["sbpair_run_paused"][""])
    assert seen == [0, 1, 0]


def test_further_destinations_share_a_label_and_none_changes_it() -> None:
    figures = LiveFigures(live := LiveRun(), {}, max_labels=2)
    for number in range(4):
        live.tally.sent(QUEUE, f"d{number}", 10, 1)
        read(figures)
    live.state.take(events.DestinationBackingOff(QUEUE, "D3", "full", 1.0, 5))
    live.state.take(events.DestinationBackingOff(QUEUE, "d9", "full", 1.0, 5))
    live.tally.sent(QUEUE, "D0", 1, 1)
    found = read(figures)
    assert found["sbpair_destination_messages_sent_total"] == {"d0": 11, "d1": 10, OTHERS: 20}
    assert found["sbpair_destination_backing_off"] == {"d0": 0, "d1": 0, OTHERS: 2}
    assert found["sbpair_destination_backoffs_total"] == {"d0": 0, "d1": 0, OTHERS: 2}


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=()), min_size=1), st.integers(1, 9)), max_size=12))
def test_hostile_names_are_escaped_and_none_is_lost(sent: list[tuple[str, int]]) -> None:
    figures = LiveFigures(live := LiveRun(), {"pair": '\udcff\n"'}, max_labels=5)
    for path, count in sent:
        live.tally.sent(QUEUE, path, count, 1)
        live.state.take(events.DestinationBackingOff("queue", path, path, 1.0, 1))
    found = _samples(text_string_to_metric_families(renderer(figures)("").content.decode()))
    series = found.get("sbpair_destination_messages_sent_total", {})
    assert sum(series.values()) == sum(count for _, count in sent)
    assert len(series) <= 6
    assert _samples(openmetrics.text_string_to_metric_families(renderer(figures)(OPEN_METRICS)[0].decode())) == found


def test_nothing_of_a_message_is_in_the_metrics() -> None:
    figures = LiveFigures(live := LiveRun(), {"command": "syphon --watch", "pair": "p"})
    named = NamedMessage(QUEUE, 77_777, "an-id", "orders", "SharedAccessKey=abc")
    live.tally.received(QUEUE, 1)
    live.tally.dead_lettered(named, "RefusedByPrimary")
    live.state.take(events.DeadLettered(QUEUE, 77_777, "an-id", "RefusedByPrimary", "SharedAccessKey=abc", "orders"))
    live.state.take(events.QueueFailed(QUEUE, "SharedAccessKey=abc", 1.0))
    text = renderer(figures)("").content.decode()
    assert 'sbpair_dead_letters_total{reason="RefusedByPrimary"} 1.0' in text
    assert [part for part in ("an-id", "77777", "abc") if part in text] == []


README = (Path(sbpair.__file__).parent / "metrics/README.md").read_text()
[ALERTS] = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
NAMES = {metric.prometheus_name: metric.label for metric in LiveFigures(LiveRun(), {}).read()}


def test_the_table_has_every_metric_with_its_label() -> None:
    rows = re.findall(r"^\| `(sbpair_\w+)` \| ?`?(\w*)`? \|", README, flags=re.MULTILINE)
    assert dict(rows) == NAMES
    assert f"{MAX_DESTINATIONS} destinations" in README


def test_the_alerts_name_metrics_and_labels_that_exist() -> None:
    assert {*re.findall(r"sbpair_\w+", ALERTS)} <= {*NAMES}
    assert {*re.findall(r"\$labels\.(\w+)", ALERTS)} <= {*NAMES.values()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_alerts(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS)
    done = run_program("promtool", "check", "rules", tmp_path / "alerts.yml")
    assert (done.returncode, "5 rules found" in done.stdout) == (0, True), done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS)
    (tmp_path / "tests.yml").write_text(STUCK)
    done = run_program("promtool", "test", "rules", tmp_path / "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


STUCK = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'sbpair_messages_sent_total{queue="q"}', values: '5x30'}
      - {series: 'sbpair_queue_messages{queue="q"}', values: '9x30'}
      - {series: 'sbpair_run_paused', values: '0x25 1x5'}
      - {series: 'sbpair_destination_backing_off{destination="orders"}', values: '1x30'}
      - {series: 'sbpair_side_away{side="primary"}', values: '0x30'}
    alert_rule_test:
      - {eval_time: 5m, alertname: BacklogIsNotMoved}
      - eval_time: 20m
        alertname: BacklogIsNotMoved
        exp_alerts: [{exp_annotations: {summary: "The backlog has messages, and none was sent for 10 minutes"}}]
      - {eval_time: 28m, alertname: BacklogIsNotMoved}
      - eval_time: 20m
        alertname: DestinationTakesNothing
        exp_alerts:
          - exp_labels: {destination: orders}
            exp_annotations: {summary: 'orders takes nothing: sbpair help runbook'}
      - {eval_time: 20m, alertname: NamespaceIsAway}
      - {eval_time: 20m, alertname: BacklogIsOld}
"""
