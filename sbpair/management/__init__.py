"""Management of a pair's entities: plan, compare, provision, audit, prune, partition.

The public names, imported when they are first used. `sbpair help management` has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.management.audit_findings import Audit as Audit
    from sbpair.management.audit_findings import DestinationSummary as DestinationSummary
    from sbpair.management.audit_findings import QueueItem as QueueItem
    from sbpair.management.audit_findings import Unseen as Unseen
    from sbpair.management.audit_findings import audit_exit_code as audit_exit_code
    from sbpair.management.auditing import audit as audit
    from sbpair.management.calls import Listed as Listed
    from sbpair.management.calls import QueueProvisioned as QueueProvisioned
    from sbpair.management.entities_file import EntitiesDocument as EntitiesDocument
    from sbpair.management.entities_file import parse_entities as parse_entities
    from sbpair.management.partitioning import DecidingProperty as DecidingProperty
    from sbpair.management.partitioning import KeyConflict as KeyConflict
    from sbpair.management.partitioning import KeyProblem as KeyProblem
    from sbpair.management.partitioning import MessageKeys as MessageKeys
    from sbpair.management.partitioning import PartitionedEntity as PartitionedEntity
    from sbpair.management.partitioning import PartitionedEntityState as PartitionedEntityState
    from sbpair.management.partitioning import PartitionItem as PartitionItem
    from sbpair.management.partitioning import PartitionReport as PartitionReport
    from sbpair.management.partitioning import create_partitioned as create_partitioned
    from sbpair.management.partitioning import deciding_property as deciding_property
    from sbpair.management.partitioning import list_partitions as list_partitions
    from sbpair.management.partitioning import partition_exit_code as partition_exit_code
    from sbpair.management.partitioning import partitioned_queue as partitioned_queue
    from sbpair.management.partitioning import partitioned_topic as partitioned_topic
    from sbpair.management.provisioning import EntityFinding as EntityFinding
    from sbpair.management.provisioning import EntityItem as EntityItem
    from sbpair.management.provisioning import EntityReport as EntityReport
    from sbpair.management.provisioning import create_queue as create_queue
    from sbpair.management.provisioning import provision as provision
    from sbpair.management.provisioning import provision_exit_code as provision_exit_code
    from sbpair.management.pruning import QueueReport as QueueReport
    from sbpair.management.pruning import prune as prune
    from sbpair.management.pruning import prune_exit_code as prune_exit_code
    from sbpair.model.entities import CorrelationFilter as CorrelationFilter
    from sbpair.model.entities import Queue as Queue
    from sbpair.model.entities import Rule as Rule
    from sbpair.model.entities import SqlFilter as SqlFilter
    from sbpair.model.entities import Subscription as Subscription
    from sbpair.model.entities import Topic as Topic
    from sbpair.model.pair import ResourceGroup as ResourceGroup
    from sbpair.model.queues import Counts as Counts
    from sbpair.model.queues import Difference as Difference
    from sbpair.model.queues import QueueFinding as QueueFinding
    from sbpair.model.queues import QueueSpec as QueueSpec
    from sbpair.model.queues import Utilisation as Utilisation
    from sbpair.model.report import FAIL_ON as FAIL_ON
    from sbpair.model.report import AuditFinding as AuditFinding
    from sbpair.model.report import Outcome as Outcome
    from sbpair.model.report import Report as Report
    from sbpair.model.report import ReportItem as ReportItem
    from sbpair.model.retries import Retrying as Retrying

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.management.audit_findings": "Audit, DestinationSummary, QueueItem, Unseen, audit_exit_code",
        "sbpair.management.auditing": "audit",
        "sbpair.management.entities_file": "EntitiesDocument, parse_entities",
        "sbpair.management.partitioning": (
            "DecidingProperty, KeyConflict, KeyProblem, MessageKeys, PartitionItem, PartitionReport, "
            "PartitionedEntity, PartitionedEntityState, create_partitioned, deciding_property, list_partitions, "
            "partition_exit_code, partitioned_queue, partitioned_topic"
        ),
        "sbpair.management.provisioning": (
            "EntityFinding, EntityItem, EntityReport, create_queue, provision, provision_exit_code"
        ),
        "sbpair.management.pruning": "QueueReport, prune, prune_exit_code",
        "sbpair.model.entities": "CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic",
        "sbpair.model.pair": "ResourceGroup",
        "sbpair.management.calls": "Listed, QueueProvisioned",
        "sbpair.model.retries": "Retrying",
        "sbpair.model.queues": "Counts, Difference, QueueFinding, QueueSpec, Utilisation",
        "sbpair.model.report": "FAIL_ON, AuditFinding, Outcome, Report, ReportItem",
    },
)
__all__ = list(__dir__())
