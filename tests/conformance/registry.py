"""The checks, each with its area and the public source of the behaviour that it expects.

Those of ASSUMPTIONS.md, which sbpair relies on, are made by its own client.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sbpair.doctor.assumptions import assumptions
from tests.conformance.bench import Bench

ASSUMPTIONS, SAMPLES = "assumptions", "samples"
AREAS = (
    ASSUMPTIONS, "access", "send", "receive", "locks", "sessions", "topics", "rules", "duplicates", "management",
    "transactions", "WebSocket", SAMPLES,
)  # fmt: skip
SBPAIR, PYTHON, JAVASCRIPT = LANGUAGES = "sbpair", "Python", "JavaScript"

LEARN = "https://learn.microsoft.com/azure/service-bus-messaging/"
GITHUB = "https://github.com/"
MESSAGES = f"{LEARN}service-bus-messages-payloads"
SEQUENCING = f"{LEARN}message-sequencing"
SETTLEMENT = f"{LEARN}message-transfers-locks-settlement"
BROWSING = f"{LEARN}message-browsing"
DEFERRAL = f"{LEARN}message-deferral"
DEAD_LETTERS = f"{LEARN}service-bus-dead-letter-queues"
SESSIONS = f"{LEARN}message-sessions"
TOPICS = f"{LEARN}service-bus-queues-topics-subscriptions"
FILTERS = f"{LEARN}topic-filters"
ACTIONS = f"{LEARN}service-bus-messaging-sql-rule-action"
FORWARDING = f"{LEARN}service-bus-auto-forwarding"
DUPLICATES = f"{LEARN}duplicate-detection"
QUOTAS = f"{LEARN}service-bus-quotas"
EXCEPTIONS = f"{LEARN}service-bus-messaging-exceptions"
MANAGEMENT = f"{LEARN}service-bus-management-libraries"
MANAGEMENT_EXCEPTIONS = f"{LEARN}service-bus-resource-manager-exceptions"
TRANSACTIONS = f"{LEARN}service-bus-transactions"
SAS = f"{LEARN}service-bus-sas"
GO = f"{GITHUB}Azure/azure-sdk-for-go/blob/main/sdk/messaging/azservicebus/"
PROTOCOL = f"{LEARN}service-bus-amqp-protocol-guide"


@dataclass(frozen=True, slots=True)
class Check:
    """One check with a client: sbpair's, or the official one of a language. One in JavaScript is run by its name."""

    area: str
    name: str
    source: str
    language: str
    run: Callable[[Bench], Awaitable[None]] | None = None


LEFT_OUT = ("idle_detach", "unpartitioned")
"""Assumptions whose check takes ten minutes, or needs a Premium namespace."""

ASSUMPTION_CHECKS = [
    Check(ASSUMPTIONS, each.name, each.source, SBPAIR)
    for each in assumptions().values()
    if each.in_doctor and each.name not in LEFT_OUT
]
PYTHON_CHECKS: list[Check] = []

Run = Callable[["Bench"], Awaitable[None]]


def check(area: str, source: str) -> Callable[[Run], Run]:
    """Register a function as a check. Its name states what it expects."""
    assert area in AREAS, area

    def register(run: Run) -> Run:
        PYTHON_CHECKS.append(Check(area, run.__name__.replace("_", " ").strip(), source, PYTHON, run))
        return run

    return register


JAVASCRIPT_CHECKS: list[Check] = [
    Check("send", "a message keeps its properties", MESSAGES, JAVASCRIPT),
    Check("send", "bodies are bytes, values and sequences", MESSAGES, JAVASCRIPT),
    Check("send", "a batch arrives in order", SEQUENCING, JAVASCRIPT),
    Check("send", "a batch has a size", QUOTAS, JAVASCRIPT),
    Check("send", "schedule and cancel", SEQUENCING, JAVASCRIPT),
    Check("receive", "complete", SETTLEMENT, JAVASCRIPT),
    Check("receive", "abandon", SETTLEMENT, JAVASCRIPT),
    Check("receive", "properties change with a settlement", SETTLEMENT, JAVASCRIPT),
    Check("receive", "abandoned too often", DEAD_LETTERS, JAVASCRIPT),
    Check("receive", "defer, and receive by number", DEFERRAL, JAVASCRIPT),
    Check("receive", "dead-letter, and read the dead letters", DEAD_LETTERS, JAVASCRIPT),
    Check("receive", "peek", BROWSING, JAVASCRIPT),
    Check("receive", "subscribe", SETTLEMENT, JAVASCRIPT),
    Check("receive", "an entity that is not there", EXCEPTIONS, JAVASCRIPT),
    Check("locks", "a lock is renewed", SETTLEMENT, JAVASCRIPT),
    Check("locks", "a message outlives the link of its receiver", f"{GITHUB}Azure/amqpnetlite/issues/340", JAVASCRIPT),
    Check("locks", "what is settled twice is refused", EXCEPTIONS, JAVASCRIPT),
    Check("sessions", "a session by its id", SESSIONS, JAVASCRIPT),
    Check("sessions", "the next session", SESSIONS, JAVASCRIPT),
    Check("sessions", "a session is locked", SESSIONS, JAVASCRIPT),
    Check("sessions", "a session has a state", SESSIONS, JAVASCRIPT),
    Check("sessions", "a session's lock is renewed", SESSIONS, JAVASCRIPT),
    Check("sessions", "a session's messages are peeked", BROWSING, JAVASCRIPT),
    Check("sessions", "without a session nothing is accepted", SESSIONS, JAVASCRIPT),
    Check("topics", "topics and subscriptions are managed", TOPICS, JAVASCRIPT),
    Check("rules", "rules are managed", FILTERS, JAVASCRIPT),
    Check("rules", "rules select", FILTERS, JAVASCRIPT),
    Check("rules", "rules by way of messages", FILTERS, JAVASCRIPT),
    Check("management", "queues are managed", MANAGEMENT, JAVASCRIPT),
    Check("management", "the namespace is described", MANAGEMENT, JAVASCRIPT),
    Check("WebSocket", "messages over WebSocket", PROTOCOL, JAVASCRIPT),
]
"""The checks of tests/integration/node/checks.mjs."""
