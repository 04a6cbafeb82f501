"""Metric alerts of Azure Monitor on the backlog queues of a pair, as Bicep or Terraform. No sbpair needs to run."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

from sbpair.backlog import prefix
from sbpair.model.pair import Pair
from sbpair.planning.entity_code import API_VERSION, NAMESPACES, Expression, bicep_literal, terraform_literal
from sbpair.template import filled

MAX_QUEUES: Final = 5_000
"""The time series that one rule watches, unless Azure's support lifts the limit of a subscription."""

ALERTS: Final = (
    ("active", "ActiveMessages", "Minimum", 1, "Messages have waited in the backlog for 15 minutes"),
    ("dead", "DeadletteredMessages", "Maximum", 2, "The backlog has dead letters"),
)
"""Name, metric, its aggregation, severity and description of each rule. One rule for both would need both at once."""


def alert_rules(pair: Pair, namespace: str, action_group: str) -> dict[str, dict[str, Any]]:
    """Return the properties of each rule by its name. `namespace` and `action_group` are expressions of their ids."""
    queues = {"name": "EntityName", "operator": "StartsWith", "values": [prefix(pair.primary.name)]}
    static = {"criterionType": "StaticThresholdCriterion", "operator": "GreaterThan", "threshold": 0}
    measured = {"metricNamespace": NAMESPACES, "dimensions": [queues]}
    return {
        name: {
            "description": f"{description}: {pair.secondary.name}, for {pair.primary.name}. Try sbpair audit.",
            "severity": severity,
            "enabled": True,
            "scopes": [Expression(namespace)],
            "evaluationFrequency": "PT5M",
            "windowSize": "PT15M",
            "criteria": {
                "odata.type": "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria",
                "allOf": [{"name": name, "metricName": metric, "timeAggregation": aggregation, **static, **measured}],
            },
            "actions": [{"actionGroupId": Expression(action_group)}],
        }
        for name, metric, aggregation, severity, description in ALERTS
    }


def alerts_text(language: Literal["bicep", "terraform"], pair: Pair, origin: str) -> str:
    """Return the file. `origin` is the command that wrote it."""
    file, literal = ("alerts.bicep", bicep_literal) if language == "bicep" else ("alerts.tf", terraform_literal)
    values = {"origin": origin, "pair": pair, "literal": literal, "rules": partial(alert_rules, pair)}
    return filled("sbpair.service", file, **values, namespaces=f"{NAMESPACES}@{API_VERSION}")
