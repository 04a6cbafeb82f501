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
    from sbpair.management.partitioned import partitioned_queue, partitioned_topic
    from sbpair.management.partitioning import (
        PartitionedEntityState,
        PartitionItem,
        PartitionReport,
        create_partitioned,
        list_partitions,
        partition_exit_code,
    )
    from sbpair.management.plain_queue import create_queue
    from sbpair.management.provision_target import EntityFinding, EntityItem
    from sbpair.management.provisioning import EntityReport, provision, provision_exit_code
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
        "FAIL_ON": "sbpair.management.audit_findings:FAIL_ON",
        "Audit": "sbpair.management.audit_findings:Audit",
        "AuditFinding": "sbpair.management.audit_findings:AuditFinding",
        "CorrelationFilter": "sbpair.model.entities:CorrelationFilter",
        "Counts": "sbpair.model.queues:Counts",
        "DecidingProperty": "sbpair.model.partition_key:DecidingProperty",
        "DestinationSummary": "sbpair.management.audit_findings:DestinationSummary",
        "Difference": "sbpair.model.queues:Difference",
        "EntitiesDocument": "sbpair.management.entities_file:EntitiesDocument",
        "EntityFinding": "sbpair.management.provision_target:EntityFinding",
        "EntityItem": "sbpair.management.provision_target:EntityItem",
        "EntityReport": "sbpair.management.provisioning:EntityReport",
        "KeyConflict": "sbpair.model.partition_key:KeyConflict",
        "KeyProblem": "sbpair.model.partition_key:KeyProblem",
        "Listed": "sbpair.model.queues:Listed",
        "MessageKeys": "sbpair.model.partition_key:MessageKeys",
        "Outcome": "sbpair.model.report:Outcome",
        "PartitionItem": "sbpair.management.partitioning:PartitionItem",
        "PartitionReport": "sbpair.management.partitioning:PartitionReport",
        "PartitionedEntity": "sbpair.model.partition_key:PartitionedEntity",
        "PartitionedEntityState": "sbpair.management.partitioning:PartitionedEntityState",
        "Queue": "sbpair.model.entities:Queue",
        "QueueFinding": "sbpair.model.queues:QueueFinding",
        "QueueItem": "sbpair.management.audit_findings:QueueItem",
        "QueueProvisioned": "sbpair.model.queues:QueueProvisioned",
        "QueueReport": "sbpair.management.pruning:QueueReport",
        "QueueSpec": "sbpair.model.queues:QueueSpec",
        "Report": "sbpair.model.report:Report",
        "ReportItem": "sbpair.model.report:ReportItem",
        "ResourceGroup": "sbpair.model.pair:ResourceGroup",
        "Retrying": "sbpair.model.queues:Retrying",
        "Rule": "sbpair.model.entities:Rule",
        "SqlFilter": "sbpair.model.entities:SqlFilter",
        "Subscription": "sbpair.model.entities:Subscription",
        "Topic": "sbpair.model.entities:Topic",
        "Unseen": "sbpair.management.audit_findings:Unseen",
        "Utilisation": "sbpair.model.queues:Utilisation",
        "audit": "sbpair.management.auditing:audit",
        "audit_exit_code": "sbpair.management.audit_findings:audit_exit_code",
        "create_partitioned": "sbpair.management.partitioning:create_partitioned",
        "create_queue": "sbpair.management.plain_queue:create_queue",
        "deciding_property": "sbpair.model.partition_key:deciding_property",
        "list_partitions": "sbpair.management.partitioning:list_partitions",
        "parse_entities": "sbpair.management.entities_file:parse_entities",
        "partition_exit_code": "sbpair.management.partitioning:partition_exit_code",
        "partitioned_queue": "sbpair.management.partitioned:partitioned_queue",
        "partitioned_topic": "sbpair.management.partitioned:partitioned_topic",
        "provision": "sbpair.management.provisioning:provision",
        "provision_exit_code": "sbpair.management.provisioning:provision_exit_code",
        "prune": "sbpair.management.pruning:prune",
        "prune_exit_code": "sbpair.management.pruning:prune_exit_code",
    },
)
