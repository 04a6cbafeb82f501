"""Entities as Resource Manager's JSON and back, and its refusals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair import backlog, errors
from sbpair.azure import descriptions
from sbpair.azure.management_errors import ServiceResponse, of_answer
from sbpair.model.entities import CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.model.entity_properties import PROPERTIES_OF
from sbpair.model.queues import Counts, QueueSpec
from sbpair.timespan import TIMESPAN_MAX

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DURATIONS = st.sampled_from(["PT30S", "P14D", TIMESPAN_MAX])
FIELDS = {str: TEXT, int: st.integers(0, 2**31 - 1), bool: st.booleans()}


def described(kind: type[QueueSpec] | type[Topic] | type[Subscription], *named: str) -> st.SearchStrategy[object]:
    plain = kind(*named)
    drawn = {
        row.name: DURATIONS if row.is_duration else FIELDS.get(type(row.default), st.none() | FIELDS[int])
        for row in PROPERTIES_OF[kind]
    }
    drawn["status"] = st.sampled_from(["Active", "SendDisabled"])
    return st.builds(lambda **changed: replace(plain, **changed), **drawn)


@given(
    described(QueueSpec, "a/b") | described(Queue, "a/b") | described(Topic, "t") | described(Subscription, "t", "s")
)
def test_every_entity_survives_a_round_trip(entity: QueueSpec | Queue | Topic | Subscription) -> None:
    named = ("t", "s") if isinstance(entity, Subscription) else (entity.path,)
    plain = type(entity)(*named)
    assert descriptions.read_json(plain, descriptions.body_of(entity)["properties"]) == entity


@given(
    st.builds(SqlFilter, TEXT.filter(bool))
    | st.builds(
        CorrelationFilter,
        label=TEXT,
        content_type=TEXT,
        properties=st.dictionaries(TEXT, TEXT, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    ),
    TEXT,
)
def test_every_rule_survives_a_round_trip(wanted: SqlFilter | CorrelationFilter, action: str) -> None:
    rule = Rule("t", "s", "r", wanted, action)
    assert descriptions.read_json(Rule("t", "s", "r"), descriptions.body_of(rule)["properties"]) == rule


def test_a_backlog_queue_is_asked_for_without_what_a_tier_could_refuse() -> None:
    assert descriptions.body_of(backlog.queue_spec("contoso", 0)) == {
        "properties": {
            "lockDuration": "PT1M",
            "maxSizeInMegabytes": 5120,
            "maxDeliveryCount": 2147483647,
            "defaultMessageTimeToLive": TIMESPAN_MAX,
            "autoDeleteOnIdle": TIMESPAN_MAX,
            "deadLetteringOnMessageExpiration": True,
            "enableBatchedOperations": True,
            "requiresSession": False,
            "requiresDuplicateDetection": False,
            "status": "Active",
        }
    }


def test_omitted_properties_have_their_defaults() -> None:
    found = {"lockDuration": "PT30S", "maxDeliveryCount": None}
    assert descriptions.read_json(Queue("q", forward_to="elsewhere"), found) == Queue("q", "PT30S")
    assert descriptions.read_json(Rule("t", "s", "r"), {"filterType": "SqlFilter"}) == Rule("t", "s", "r")
    assert descriptions.queue_state("q", {}, counted=True).counts == Counts()


PLACE = "/subscriptions/0/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso"


@pytest.mark.parametrize(
    ("status", "sub_code", "detail", "raised"),
    [
        (404, "", "(SubscriptionNotFound) The subscription '0' could not be found.", errors.UsageError),
        (404, "", "(ResourceGroupNotFound) Resource group 'g' could not be found.", errors.UsageError),
        (404, "", f"(ParentResourceNotFound) … because '{PLACE}' could not be found.", errors.UsageError),
        (404, "", "(ResourceNotFound) The Resource 'Microsoft.ServiceBus/namespaces/x' …", errors.UsageError),
        (404, "", f"(ResourceNotFound) The Resource '{PLACE}/queues/x' …", errors.EntityMissing),
        (404, "", f"(ParentResourceNotFound) … because '{PLACE}/topics/x' …", errors.EntityMissing),
        (404, "", "(MessagingGatewayNotFoundStatusCode) The messaging entity …", errors.EntityMissing),
        (401, "", "(ExpiredAuthenticationToken) The access token is expired.", errors.NotAuthenticated),
        (403, "", "(AuthorizationFailed) The client does not have authorization …", errors.NotAuthorized),
        (409, "40901", "(MessagingGatewayConflict) …", errors.Unavailable),
        (429, "40901", "(MessagingGatewayTooManyRequests) …", errors.Unavailable),
        (429, "", "(TooManyRequests) …", errors.Throttled),
        (400, "40000", "(MessagingGatewayBadRequest) …", errors.ServiceRefused),
    ],
)
def test_resource_manager_refusals_map_to_the_errors_of_atom(
    status: int, sub_code: str, detail: str, raised: type[errors.SbpairError]
) -> None:
    error = of_answer(ServiceResponse(status, sub_code, detail), "read it", "contoso")
    assert type(error) is raised
    assert ("role" in error.hint) == (status == 403)


@pytest.mark.parametrize(
    ("status", "sub_code", "detail", "taken"),
    [
        (409, "40900", "(MessagingGatewayConflict) …", True),
        (409, "40901", "(MessagingGatewayConflict) …", False),
        (429, "", "(MessagingGatewayTooManyRequests) The messaging entity 'x' already exists.", True),
        (429, "50004", "(MessagingGatewayTooManyRequests) … being throttled", False),
    ],
)
def test_taken_name_differs_from_an_operation_in_progress(status: int, sub_code: str, detail: str, taken: bool) -> None:
    assert ServiceResponse(status, sub_code, detail).name_is_taken is taken


@pytest.mark.parametrize(("said", "counted"), [(None, True), ("Available", True), ("Limited", False)])
def test_counts_of_a_queue_that_is_limited_are_not_exact(said: str | None, counted: bool) -> None:
    names = ("Active", "DeadLetter", "Scheduled", "Transfer", "TransferDeadLetter", "")
    found = {f"{name}MessageCount": "0" for name in names} | ({"EntityAvailabilityStatus": said} if said else {})
    assert (descriptions.counts_of(found) is not None) is counted
