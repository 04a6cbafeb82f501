"""Schemas of the output of cost and export."""

from sbpair.cli.schemas.builders import (
    array,
    choice,
    count,
    document,
    flag,
    keys_of,
    nullable,
    number,
    record,
    records,
    text,
)
from sbpair.cli.schemas.moves import MONEY, OPERATIONS
from sbpair.planning.outage_cost import BacklogRoom, Outage

_SIDE = record(
    "One namespace",
    tier=choice("Its tier", "Basic", "Standard", "Premium"),
    units=nullable(count("Messaging units of a Premium namespace")),
)
COST = document(
    "sbpair/cost/1",
    "The cost of an outage. JSON Lines have the document.",
    outage=record(
        "The outage",
        **keys_of(Outage),
        messages=count("Messages that are sent"),
        units=count("Operations that one send or receive of a message is billed as"),
    ),
    backlog=record(
        "The backlog queues",
        **keys_of(BacklogRoom),
        full_in_seconds=number("Time from the start of the outage until all are full"),
        full_in_seconds_partitioned=nullable(number("The same for partitioned queues of Standard; null if known")),
        stored=count("Messages that fit"),
        not_stored=count("Messages that do not fit"),
    ),
    charges=records(
        "The four charges of the stored messages",
        "One charge",
        stage=text("Stage", example="sent to the backlog"),
        article=count("Operations by the documentation of the feature: one for each stage"),
        billed=count("Operations billed today: a receive and its completion are two"),
    ),
    operations=record(
        "Billable operations",
        **OPERATIONS,
    ),
    polling=record(
        "Receives of a mover that watches empty queues",
        an_hour=count("In an hour"),
        in_30_days=count("In 30 days"),
    ),
    tiers=records(
        "The cost by tier",
        "One pair of tiers",
        secondary=_SIDE,
        primary=_SIDE,
        operations=MONEY,
        by_sbpair=MONEY,
        idle=MONEY,
        base=MONEY,
        move_back_seconds=nullable(number("Time to move the messages back; null if only the network limits it")),
    ),
    live=flag("Whether tiers and queues were read from the pair"),
    currency=text("Currency"),
    dated=text("Date of the prices"),
    notes=array("Remarks and assumptions", text("One remark")),
)
SERVICE = document(
    "sbpair/service/1",
    "The definition of a service that starts a syphon. JSON Lines have the document.",
    kind=choice("Kind of service", "systemd", "kubernetes", "containerapp", "compose"),
    name=text("Name of the service"),
    secrets=array("Secrets that it needs", text("Name of a variable", example="SBPAIR_PRIMARY_CONNECTION_STRING")),
    text=text("The file"),
)
EXPORT = document(
    "sbpair/export/1",
    "Entities of one namespace as infrastructure code. JSON Lines have the document.",
    language=choice("Language of the code", "bicep", "terraform"),
    side=choice("Side of the pair", "primary", "secondary"),
    namespace=text("Name of the namespace"),
    backlog_queues=count("Number of backlog queues"),
    entities=records(
        "The other entities, in the order of their file",
        "One entity",
        kind=choice("Its kind", "queue", "topic", "subscription", "rule"),
        name=text("Its path", example="events/Subscriptions/audit"),
        symbol=text("Its name in the code", example="subscription_events_audit"),
    ),
    needs=array("Forwarding targets that must exist, and are not described", text("Path of a queue or topic")),
    file=nullable(text("The written file; null without one")),
    code=nullable(text("The code; null if a file was written")),
)
