"""Management of a pair's entities: plan, compare, provision, audit, prune, partition.

The public names, imported when they are first used. `sbpair help management` has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair import lazy_names

if TYPE_CHECKING:
    from sbpair.management.audit_findings import (
        FAIL_ON,
        Audit,
        AuditFinding,
        DestinationSummary,
        QueueItem,
        Unseen,
        audit_exit_code,
    )
    from sbpair.management.auditing import audit
    from sbpair.management.entities_file import EntitiesDocument, parse_entities
    from sbpair.management.partitioning import (
        PartitionedEntityState,
        PartitionItem,
        PartitionReport,
        create_partitioned,
        list_partitions,
        partition_exit_code,
        partitioned_queue,
        partitioned_topic,
    )
    from sbpair.management.provision_namespace import EntityFinding, EntityItem
    from sbpair.management.provisioning import EntityReport, create_queue, provision, provision_exit_code
    from sbpair.management.pruning import QueueReport, prune, prune_exit_code
    from sbpair.model.entities import CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
    from sbpair.model.pair import ResourceGroup
    from sbpair.model.partition_key import (
        DecidingProperty,
        KeyConflict,
        KeyProblem,
        MessageKeys,
        PartitionedEntity,
        deciding_property,
    )
    from sbpair.model.queues import (
        Counts,
        Difference,
        Listed,
        QueueFinding,
        QueueProvisioned,
        QueueSpec,
        Retrying,
        Utilisation,
    )
    from sbpair.model.report import Outcome, Report, ReportItem

__all__ = [
    "FAIL_ON",
    "Audit",
    "AuditFinding",
    "CorrelationFilter",
    "Counts",
    "DecidingProperty",
    "DestinationSummary",
    "Difference",
    "EntitiesDocument",
    "EntityFinding",
    "EntityItem",
    "EntityReport",
    "KeyConflict",
    "KeyProblem",
    "Listed",
    "MessageKeys",
    "Outcome",
    "PartitionItem",
    "PartitionReport",
    "PartitionedEntity",
    "PartitionedEntityState",
    "Queue",
    "QueueFinding",
    "QueueItem",
    "QueueProvisioned",
    "QueueReport",
    "QueueSpec",
    "Report",
    "ReportItem",
    "ResourceGroup",
    "Retrying",
    "Rule",
    "SqlFilter",
    "Subscription",
    "Topic",
    "Unseen",
    "Utilisation",
    "audit",
    "audit_exit_code",
    "create_partitioned",
    "create_queue",
    "deciding_property",
    "list_partitions",
    "parse_entities",
    "partition_exit_code",
    "partitioned_queue",
    "partitioned_topic",
    "provision",
    "provision_exit_code",
    "prune",
    "prune_exit_code",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.management.audit_findings": (
            "FAIL_ON, Audit, AuditFinding, DestinationSummary, QueueItem, Unseen, audit_exit_code"
        ),
        "sbpair.management.auditing": "audit",
        "sbpair.management.entities_file": "EntitiesDocument, parse_entities",
        "sbpair.management.partitioning": (
            "PartitionItem, PartitionReport, PartitionedEntityState, create_partitioned, list_partitions, "
            "partition_exit_code, partitioned_queue, partitioned_topic"
        ),
        "sbpair.management.provision_namespace": "EntityFinding, EntityItem",
        "sbpair.management.provisioning": "EntityReport, create_queue, provision, provision_exit_code",
        "sbpair.management.pruning": "QueueReport, prune, prune_exit_code",
        "sbpair.model.entities": "CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic",
        "sbpair.model.pair": "ResourceGroup",
        "sbpair.model.partition_key": (
            "DecidingProperty, KeyConflict, KeyProblem, MessageKeys, PartitionedEntity, deciding_property"
        ),
        "sbpair.model.queues": (
            "Counts, Difference, Listed, QueueFinding, QueueProvisioned, QueueSpec, Retrying, Utilisation"
        ),
        "sbpair.model.report": "Outcome, Report, ReportItem",
    },
)
