"""The README of the metrics: its table, and its alerts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import sbpair
from sbpair.metrics.live_figures import MAX_DESTINATIONS, METRICS
from tests.kit.command import run_program

README = (Path(sbpair.__file__).parent / "metrics/README.md").read_text()
[ALERTS] = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
NAMES = {metric.prometheus_name: metric.label for metric in METRICS}


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
