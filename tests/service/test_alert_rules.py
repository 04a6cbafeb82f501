"""Alerts of Azure Monitor: golden files that published grammars read, and properties that match a published schema."""

import json
from pathlib import Path
from typing import Literal

import pytest
from jsonschema import Draft202012Validator

from sbpair.backlog import queue_path
from sbpair.service.alert_rules import alert_rules, alerts_text
from tests.kit.command import Here
from tests.kit.golden import check_golden
from tests.kit.pairs import unconnected_pair
from tests.planning.test_entity_code import needs_terraform, parsed, run_terraform
from tests.service.test_service_definition import IDENTITIES

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"
SCHEMA = json.loads((FOLDER / "alert_schema.json").read_text())


@pytest.mark.parametrize(("language", "ending"), [("bicep", "bicep"), ("terraform", "tf")])
def test_alerts_are_as_they_were_last_agreed(language: Literal["bicep", "terraform"], ending: str) -> None:
    text = alerts_text(language, unconnected_pair(3), "the origin")
    check_golden(GOLDEN / f"alerts.{ending}", text)
    if language == "bicep":
        assert [each.type for each in parsed(text).named_children].count("resource_declaration") == 3


@needs_terraform
def test_terraform_reads_the_alerts_and_changes_no_layout() -> None:
    run_terraform(GOLDEN, "fmt", "-check", "-diff")


def test_each_rule_matches_the_published_schema_and_watches_each_queue() -> None:
    rules = alert_rules(unconnected_pair(3), "NAMESPACE", "GROUP")
    for properties in rules.values():
        validator = Draft202012Validator({"$ref": "#/definitions/MetricAlertProperties", **SCHEMA})
        validator.validate(properties)
        assert [*validator.iter_errors({**properties, "scope": "x"})] != []
        [condition] = properties["criteria"]["allOf"]
        [dimension] = condition["dimensions"]
        assert (dimension["name"], dimension["operator"]) == ("EntityName", "StartsWith")
        assert [queue_path("contoso", 9999).startswith(each) for each in dimension["values"]] == [True]
        assert not queue_path("contoso-2", 0).startswith(dimension["values"][0])
        assert (properties["scopes"], properties["actions"]) == (["NAMESPACE"], [{"actionGroupId": "GROUP"}])
    names = [each["criteria"]["allOf"][0]["metricName"] for each in rules.values()]
    assert names == ["ActiveMessages", "DeadletteredMessages"]


def test_alerts_are_printed_with_a_warning_beyond_the_limit(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in IDENTITIES.items():
        monkeypatch.setenv(name, value)
    code, text, err = here("service", "alerts", "bicep")
    assert (code, err, text.splitlines()[0]) == (0, "", "// sbpair service alerts bicep (version 0.1.0)")
    code, out, err = here("service", "alerts", "terraform", "--output", "json")
    assert (code, err, json.loads(out)["name"]) == (0, "", "contoso-backlog")
    (tmp_path / "sbpair.toml").write_text("[pairs.default]\nbacklog_queues = 5001\n")
    code, _, err = here("service", "alerts", "terraform", "--config", str(tmp_path / "sbpair.toml"))
    assert (code, "a rule watches at most 5000 queues" in err) == (0, True)
