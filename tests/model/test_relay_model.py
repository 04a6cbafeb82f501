"""Every interleaving of two requests of a relay client."""

import pytest

from sbpair.relay import relay_client
from sbpair.relay.relay_client import AsyncRelayClient
from sbpair.relay.relay_endpoint import Side, other_side
from tests.model.relay_model import RelayModel
from tests.model.search import search


def test_requests_and_roles_have_their_properties_in_every_interleaving() -> None:
    found = search(RelayModel(0, 1))
    assert (found.wrong, found.trace) == ("", ())
    assert found.states > 800


def always(*_: object, **__: object) -> bool:
    return True


def swap_always(self: AsyncRelayClient, failed: Side, reason: str) -> None:
    del failed
    self._become(other_side(self._active), reason)


def stay(*_: object) -> None: ...


def deny(_: AsyncRelayClient, side: Side, failure: relay_client.SideFailure) -> Exception:
    del side
    return failure.error


@pytest.mark.parametrize(
    ("where", "name", "changed", "wrong"),
    [
        (relay_client, "may_reissue", always, "a request was executed twice that must not be"),
        (
            AsyncRelayClient,
            "_leave",
            swap_always,
            "the side that failed stays active after its request went to the other",
        ),
        (AsyncRelayClient, "_leave", stay, "the side that failed stays active after its request went to the other"),
        (AsyncRelayClient, "_alone", deny, "a request was executed, and its error denies that"),
    ],
)
def test_a_defect_of_a_relay_client_is_found(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, changed: object, wrong: str
) -> None:
    monkeypatch.setattr(where, name, changed)
    assert search(RelayModel(0, 1)).wrong == wrong
