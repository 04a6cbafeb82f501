"""Fixtures of the emulator's tests: each answer over HTTP is one that strict readers take.

Atom: the elements are in the order in which the service writes them, which .NET's DataContractSerializer needs, and in
its namespaces. Resource Manager: Microsoft's model has each member of an answer, and none that it requires is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from azure.mgmt.servicebus._utils.model_base import Model
from azure.mgmt.servicebus.aio.operations import _operations as arm

from sbpair.emulator.frontends.http import atom_frontend

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
ORDERS = {
    "entry": "id title published updated author link content",
    "QueueDescription": (
        "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive "
        "DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations "
        "SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo CreatedAt UpdatedAt "
        "AccessedAt UserMetadata SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning "
        "EntityAvailabilityStatus ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes"
    ),
    "TopicDescription": (
        "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow "
        "EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible "
        "AuthorizationRules Status CreatedAt UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails "
        "SubscriptionCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus "
        "EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes SqlFilterCount CorrelationFilterCount"
    ),
    "SubscriptionDescription": (
        "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration "
        "DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status "
        "ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata CountDetails ForwardDeadLetteredMessagesTo "
        "AutoDeleteOnIdle EntityAvailabilityStatus"
    ),
    "AuthorizationRule": (
        "ClaimType ClaimValue Rights CreatedTime ModifiedTime KeyName PrimaryKey SecondaryKey"
    ),
    "CountDetails": (
        "ActiveMessageCount DeadLetterMessageCount ScheduledMessageCount TransferMessageCount "
        "TransferDeadLetterMessageCount"
    ),
    "RuleDescription": "Filter Action CreatedAt Name",
    "NamespaceInfo": "Alias CreatedTime MessagingSKU MessagingUnits ModifiedTime Name NamespaceType",
}  # fmt: skip
"""Of descriptions: the Order of the members in Microsoft's package WindowsAzure.ServiceBus. Of what it lacks: answers
of the service in azure-sdk-for-go (sdk/messaging/azservicebus/admin/admin_client_topic_filtercount_test.go) and in
azure-sdk-for-java (NamespaceInfo). Of rules and keys: specification/servicebus/data-plane in azure-rest-api-specs.
"""


def check_atom(text: str) -> None:
    """Fail if an element is unknown, out of its order or in another namespace."""
    for element in ET.fromstring(text).iter():  # noqa: S314  # it comes from the emulator
        space, _, name = element.tag[1:].rpartition("}")
        if name not in ORDERS:
            continue
        order = ORDERS[name].split()
        assert space == (ATOM if name == "entry" else CONNECT), element.tag
        spaces = {child.tag[1:].partition("}")[0] for child in element}
        assert spaces <= {COUNTS if name == "CountDetails" else space}, (name, spaces)
        places = [order.index(child.tag.rpartition("}")[2]) for child in element]
        assert places == sorted(set(places)), (name, [child.tag for child in element])


def check_model(found: Any, answer: Any) -> None:
    """Fail if the model of an answer lacks one of its members, or a member that it requires is missing."""
    if isinstance(found, list):
        for each, item in zip(found, answer, strict=True):
            check_model(each, item)
    if not isinstance(found, Model) or not isinstance(answer, dict):
        return
    kind = type(found)
    members = {each._rest_name: name for name, each in kind._attr_to_rest_field.items()}
    assert set(answer) <= set(members), f"{kind.__name__} has no {sorted(set(answer) - set(members))}"
    for rest_name, name in members.items():
        annotation = next((each.__annotations__[name] for each in kind.__mro__ if name in each.__annotations__), "")
        if not ("Optional" in str(annotation) or "NoneType" in str(annotation)):
            assert answer.get(rest_name) is not None, f"{kind.__name__} requires {rest_name}"
        check_model(getattr(found, name), answer.get(rest_name))


@pytest.fixture(autouse=True)
def _strict_http(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which the emulator answers with what a strict reader refuses."""
    findings: list[str] = []
    respond, deserialize = atom_frontend.atom_response, arm._deserialize

    def note(check: Any, *arguments: Any) -> None:
        try:
            check(*arguments)
        except (AssertionError, ValueError, ET.ParseError) as finding:
            findings.append(str(finding))

    def responded(text: str, *others: Any, **options: Any) -> Any:
        note(check_atom, text)
        return respond(text, *others, **options)

    def deserialized(kind: Any, answer: Any, *others: Any, **options: Any) -> Any:
        found = deserialize(kind, answer, *others, **options)
        note(check_model, found, answer)
        return found

    monkeypatch.setattr(atom_frontend, "atom_response", responded)
    monkeypatch.setattr(arm, "_deserialize", deserialized)
    yield
    assert not findings, f"a strict reader refuses an answer: {'; '.join(dict.fromkeys(findings))}"
