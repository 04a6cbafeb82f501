"""The roles of a passive sender, in any sequence of sends and commands, with an SDK whose outcomes are given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusQuotaExceededError
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import BothFailed
from sbpair.model.pair import SIDES
from sbpair.replication.events import RolesSwapped
from sbpair.replication.senders import PassiveSender
from tests.failover.test_states import a_pair

ACCEPTED, GONE, REFUSED = None, ServiceBusConnectionError, ServiceBusQuotaExceededError
OUTCOMES = st.sampled_from((ACCEPTED, GONE, REFUSED))


class Sides:
    """A passive sender, whose sends have the given outcomes in turn, and the sides that it tried."""

    def __init__(self, **options: Any) -> None:
        self.tried: list[str] = []
        self.outcomes: list[type[AzureError] | None] = []
        self.events: list[Any] = []
        self.sender = PassiveSender(a_pair(), "orders", retries=0, on_event=self.events.append, **options)
        self.sender._clients = {side: Client(self, side) for side in SIDES}

    def send(self, outcomes: Iterable[type[AzureError] | None]) -> str | AzureError | BothFailed | None:
        """Send a message, and return the side that accepted it, or the error."""
        self.outcomes, self.tried = list(outcomes), []
        try:
            return self.sender.send_messages(ServiceBusMessage(b"m"))
        except (AzureError, BothFailed) as error:
            return error


class Client:
    """An SDK client and sender of one side."""

    def __init__(self, sides: Sides, side: str) -> None:
        self.sides, self.side = sides, side

    def get_queue_sender(self, _entity: str) -> Client:
        return self

    def create_message_batch(self) -> None:
        pass

    def send_messages(self, _message: object, *, timeout: float) -> None:
        assert timeout > 0
        self.sides.tried.append(self.side)
        if (kind := self.sides.outcomes.pop(0)) is not None:
            raise kind(message="no")

    def close(self) -> None:
        pass


@given(st.lists(st.tuples(OUTCOMES, OUTCOMES)), st.sets(st.integers(0, 20)))
def test_roles_swap_only_by_backup_acceptance_or_command(
    sends: list[tuple[type[AzureError] | None, type[AzureError] | None]], commands: set[int]
) -> None:
    sides, active, backup = Sides(), "primary", "secondary"
    swaps = []
    for number, (first, second) in enumerate(sends):
        if number in commands:
            sides.sender.swap_roles()
            active, backup = backup, active
            swaps.append(active)
        assert sides.sender.active == active
        accepted = sides.send((first, second))
        if first is not GONE:
            assert sides.tried == [active]
            assert accepted == active if first is ACCEPTED else isinstance(accepted, first)
        elif second is ACCEPTED:
            assert (sides.tried, accepted) == ([active, backup], backup)
            active, backup = backup, active
            swaps.append(active)
        else:
            assert isinstance(accepted, BothFailed)
            assert isinstance(accepted.__cause__, ExceptionGroup)
            assert accepted.__cause__.exceptions == (*accepted.reasons.values(),)
            assert sides.tried == [*accepted.in_doubt] == [*accepted.reasons] == [active, backup]
        assert sides.sender.active == active
    assert [each.active for each in sides.events if isinstance(each, RolesSwapped)] == swaps


def test_a_swap_during_a_send_is_kept_with_its_one_event() -> None:
    def swap(error: Exception) -> bool:
        sides.sender.swap_roles()
        return isinstance(error, GONE)

    sides = Sides(failover_on=swap)
    assert sides.send((GONE, ACCEPTED)) == "secondary"
    assert sides.sender.active == "secondary"
    assert len([each for each in sides.events if isinstance(each, RolesSwapped)]) == 1
