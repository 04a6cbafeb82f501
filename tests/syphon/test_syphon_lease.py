"""The lease across machines, over real sockets: sessions by the wire client, and syphons with state of their own."""

import os
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.link import LinkAttaching, terminus_address
from sbpair.amqp.performatives import Source
from sbpair.amqp_client.client import connect
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import (
    EntityMissing,
    NotAuthorized,
    SbpairError,
    ServiceRefused,
    SessionLocked,
    SessionLockLost,
    UsageError,
)
from sbpair.timespan import TICKS_PER_SECOND
from tests.amqp_client.peers import scripted
from tests.kit.command import environment, finished, start
from tests.kit.waiting import PATIENCE_SECONDS, until
from tests.syphon.worlds import World, world

LEASES = "leases"


def sessions(world: World, lock: int = 60) -> Any:
    description = QueueDescription(requires_session=True, lock_duration=lock * TICKS_PER_SECOND)
    return world.secondary.create_queue(LEASES, description)


# Sessions, by the wire client


async def test_a_session_is_held_renewed_and_remembered_and_given_back() -> None:
    async with world() as made, connect(made.pair.secondary) as wire, connect(made.pair.secondary) as other:
        queue = sessions(made)
        session = await wire.session(LEASES, "s")
        held = queue.messages.held_session("s")
        assert session.locked_until_ms == held.locked_until_ms
        with pytest.raises(SessionLocked, match=r"session-cannot-be-locked"):
            await other.session(LEASES, "s")
        await wire.set_session_state(session, b"mine")
        assert await other.session_state(LEASES, "s") == b"mine"
        made.emulator.advance(30_000)
        assert await wire.renew_session(session) == held.locked_until_ms
        assert held.locked_until_ms > session.locked_until_ms
        await wire.set_session_state(session, None)
        session.close()
        again = await other.session(LEASES, "s")
        assert await other.session_state(LEASES, "s") is None
        assert again.error is None


async def test_a_session_whose_lock_ran_out_is_lost_by_its_link_and_by_a_renewal() -> None:
    async with world() as made, connect(made.pair.secondary) as wire:
        sessions(made)
        session = await wire.session(LEASES, "s")
        made.emulator.faults.expire_locks("contoso-dr", LEASES)
        with pytest.raises(SessionLockLost):
            await session.take(1, seconds=PATIENCE_SECONDS)
        with pytest.raises(SessionLockLost):
            await wire.renew_session(session)


async def test_a_queue_without_sessions_gives_none() -> None:
    async with world() as made, connect(made.pair.secondary) as wire:
        made.secondary.create_queue("plain")
        with pytest.raises(ServiceRefused, match="does not require sessions"):
            await wire.session("plain", "s")
        assert wire.error is None


async def test_a_peer_that_knows_nothing_of_sessions_has_not_given_one() -> None:
    def without_filter(_peer: Any, event: Any) -> bool:
        if not isinstance(event, LinkAttaching) or terminus_address(event.link.remote.source) != LEASES:
            return False
        event.link.accept(source=Source(LEASES))
        return True

    async with scripted(without_filter) as (_, endpoint), connect(endpoint) as wire:
        with pytest.raises(ServiceRefused, match="the session was not granted"):
            await wire.session(LEASES, "s")


# Syphons


@pytest.mark.parametrize(
    ("queue", "made_as", "kind", "text"),
    [
        ("nowhere", "", EntityMissing, "the queue of the lease, 'nowhere', does not exist in contoso-dr"),
        ("plain", "create_queue", UsageError, "'plain' in contoso-dr cannot carry a lease"),
        ("news", "create_topic", UsageError, "'news' in contoso-dr cannot carry"),
    ],
)
async def test_what_cannot_carry_a_lease_is_refused_with_how_to_make_one(
    queue: str, made_as: str, kind: type[SbpairError], text: str, tmp_path: Path
) -> None:
    async with world() as made:
        if made_as:
            getattr(made.secondary, made_as)(queue)
        made.strand(1)
        with pytest.raises(kind) as refused:
            await made.run(lease_queue=queue, state=tmp_path)
        assert type(refused.value) is kind
        assert refused.value.exit_code == 2
        assert text in refused.value.message
        assert f"--enable-session true --lock-duration PT1M --name {queue}" in refused.value.hint
        assert made.backlog().counts().active == 1
        assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_a_key_without_listen_gets_no_lease() -> None:
    async with world() as made:
        sessions(made)
        made.may_only("secondary", AccessRight.SEND)
        with pytest.raises(NotAuthorized) as refused:
            await made.run(lease_queue=LEASES)
        assert refused.value.exit_code == 5


async def test_two_processes_with_state_of_their_own_do_not_move_the_same_pair(tmp_path: Path) -> None:
    async with world() as made:
        sessions(made)
        made.strand(1)
        async with made.watching(lease_queue=LEASES, state=tmp_path / "a"):
            await until(lambda: made.destination().counts().active == 1)
            words = ("syphon", "--once", "--lease", LEASES, "--state", str(tmp_path / "b"))
            code, out, said = await finished(await start(*words, env=environment(made.emulator)))
        assert (code, out) == (4, "")
        assert f"process {os.getpid()} on " in said
        # It was given back: nobody has to be waited for.
        made.stop.clear()
        assert (await made.run(lease_queue=LEASES)).exit_code == 0
