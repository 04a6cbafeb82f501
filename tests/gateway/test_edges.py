"""The edges of a client's links: what it may ask for, and moments at which something else ends too."""

import pytest

from sbpair.amqp.link import LinkDetached
from tests.emulator.peer import plain
from tests.kit.gateway_pair import accepted, gateway_pair

pytestmark = pytest.mark.filterwarnings("ignore::sbpair.ShortTimeout")

ODD = (
    "$management",
    "a b",
    "x" * 300,
    "orders/$DeadLetterQueue",
    "/",
    "a//b",
    "é",
    "a\0b",
    "//a",
    "sb://x",
    "$cbs/x",
    "..",
)


@pytest.mark.parametrize("address", ODD)
async def test_a_name_that_no_entity_has_is_refused_on_its_link(address: str) -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        link = await peer.attach_sender(address)
        assert (await peer.wait(LinkDetached, of=link)).error is not None
        await accepted(peer, await peer.attach_sender("orders"), plain("x"))
