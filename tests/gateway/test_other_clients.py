"""The clients of `tests/clients`, each with a gateway where it has a namespace. See EXCEPTIONS."""

from collections.abc import Iterator

import pytest

from sbpair.testing import EmulatorOptions
from tests.clients.test_clients import (
    OnPort,
    started,
    test_a_client_goes_on_after_a_restart,
    test_a_message_of_many_frames_arrives_whole,
    test_a_message_with_values_of_every_type_is_read,
    test_a_scheduled_message_waits_for_its_time,
    test_a_session_is_received_by_its_id_and_the_next_one_without,
    test_a_settlement_has_its_effect,
    test_a_token_opens_links_after_an_anonymous_sign_in,
    test_a_transaction_exchanges_a_message_for_another_or_does_nothing,
    test_dead_letters_are_received,
    test_requests_to_the_management_node_are_answered,
)
from tests.kit.running_gateway import RunningGateway

__all__ = [
    "started",
    "test_a_client_goes_on_after_a_restart",
    "test_a_message_of_many_frames_arrives_whole",
    "test_a_message_with_values_of_every_type_is_read",
    "test_a_scheduled_message_waits_for_its_time",
    "test_a_session_is_received_by_its_id_and_the_next_one_without",
    "test_a_settlement_has_its_effect",
    "test_a_token_opens_links_after_an_anonymous_sign_in",
    "test_a_transaction_exchanges_a_message_for_another_or_does_nothing",
    "test_dead_letters_are_received",
    "test_requests_to_the_management_node_are_answered",
]

pytestmark = [pytest.mark.slow, pytest.mark.odd_messages]


@pytest.fixture(scope="module")
def served() -> Iterator[RunningGateway]:
    with RunningGateway(options=EmulatorOptions(tls=True)) as running:
        yield running


@pytest.fixture
def on_port() -> OnPort:
    return lambda port, options: RunningGateway(port, options=options)
