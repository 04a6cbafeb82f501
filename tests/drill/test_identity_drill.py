"""The drill whose identity providers go away, with real sign-ins to two tenants."""

import pytest

from sbpair import drill

# The SDK leaves the sockets of what has failed to whoever collects the garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def test_nothing_is_lost_while_identity_providers_are_away() -> None:
    intervals = drill.Intervals(failover=0.2, token_life=3.0)
    result = await drill.run_drill(messages=40, queues=2, identity_outage=True, intervals=intervals)
    sending = result.sending
    assert (result.exit_code, result.lost, result.duplicated, result.altered) == (0, 0, 0, 0), result
    assert (sending.lost, sending.altered, sending.refused, sending.unexplained) == (0, 0, 0, 0), sending
    assert sending.received == sending.sent == sending.primary + sending.backlog + sending.outbox
    assert sending.backlog >= 10
    assert sending.outbox >= 10
    assert [each.name for each in result.timeline if each.name != "sender"] == [
        *("start", "provision", "strand", "syphon", "identity-down", "both-down", "identity-up", "compare")
    ]
