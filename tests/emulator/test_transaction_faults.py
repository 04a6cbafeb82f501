"""A connection that breaks after any of its frames: the transaction has happened as a whole, or not at all."""

from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.performatives import Accepted
from sbpair.emulator.entities.namespace import Namespace
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.peer import Peer, Stage
from tests.emulator.storage_worlds import copied

BODIES = [b"\x00\x53\x75\xa0\x01%d" % number for number in range(4)]
MAX_FRAMES = 60


async def begin_exchange(peer: Peer) -> tuple[Any, bytes]:
    """Exchange one message for two others, one of them by way of the queue. Return the control link and the id."""
    session = await peer.begin()
    control, txn_id, sender = await peer.begin_sending("orders", session=session)
    receiver = await peer.attach_receiver("orders", session=session)
    other = await peer.attach_sender("other", session=session)
    (delivery,) = await peer.take(receiver, 1)
    await peer.settle_in(txn_id, delivery)
    await peer.send_in(txn_id, sender, BODIES[1])
    await peer.send_in(txn_id, other, BODIES[2])
    return control, txn_id


async def exchange(peer: Peer, *, fail: bool) -> None:
    control, txn_id = await begin_exchange(peer)
    await peer.discharge(control, txn_id, fail=fail)
    peer.connection.close()
    await peer.flush()
    await peer.wait_closed()


def bodies_in(namespace: Namespace) -> dict[str, list[bytes]]:
    return {queue.path: [each.sections.body for each in queue.messages.peek(0, 9)] for queue in namespace.queues()}


BEFORE = {"orders": [BODIES[0]], "other": []}
AFTER = {"orders": [BODIES[1]], "other": [BODIES[2]]}


@pytest.mark.parametrize("fail", [False, True], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["drop", "reset"])
async def test_a_connection_may_break_after_each_frame(stage: Stage, kind: str, fail: bool) -> None:
    namespace = stage.namespace
    namespace.create_queue("other")
    outcomes = []
    for frames in range(MAX_FRAMES):
        for queue in namespace.queues():
            queue.messages.expire_locks()
            queue.messages.delete(9, namespace.clock.now_ms() + 1)
        async with stage.connect() as outside:
            await outside.send(await outside.attach_sender("orders"), BODIES[0])
        with stage.emulator.faults.during(kind, "contoso", after_frames=frames, count=1):
            try:
                async with stage.connect() as peer:
                    await exchange(peer, fail=fail)
                broke = False
            except (AssertionError, ConnectionError):
                broke = True
        outcomes.append(bodies_in(namespace))
        assert outcomes[-1] in (BEFORE, AFTER)
        if not broke:
            break
    assert not broke, "the exchange has more frames than the test expects"
    assert frames > 10
    # The discharge decides: nothing before it, and everything after it.
    committed = [outcome == AFTER for outcome in outcomes]
    assert committed == sorted(committed)
    assert any(committed) is not fail


async def test_a_durable_emulator_has_all_of_a_committed_transaction(tmp_path: Path) -> None:
    data = tmp_path / "emulator.data"
    options = EmulatorOptions(data=data, durable=True)
    async with Emulator([("contoso", 0)], options=options) as emulator:
        stage = Stage(emulator)
        stage.namespace.create_queue("other")
        async with stage.connect() as peer:
            await peer.send(await peer.attach_sender("orders"), BODIES[0])
            control, txn_id = await begin_exchange(peer)
            before = copied(data, "before")
            assert await peer.discharge(control, txn_id) == Accepted()
            after = copied(data, "after")
    for path, expected in ((before, BEFORE), (after, AFTER)):
        async with Emulator([("contoso", 0)], options=EmulatorOptions(data=path)) as emulator:
            assert bodies_in(emulator.namespaces["contoso"]) == expected
