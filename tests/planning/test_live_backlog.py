"""`sbpair cost --live`: the tiers and queues of an emulated pair, and what is assumed without permission."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from sbpair.backlog import queue_spec
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.errors import NotAuthenticated, UsageError
from sbpair.management import create_queue
from sbpair.management.provisioning import provision
from sbpair.model.entities import Queue
from sbpair.model.tiers import PREMIUM, STANDARD
from sbpair.planning.live_backlog import read_backlog
from sbpair.planning.outage_cost import BacklogRoom, room_of
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import environment
from tests.kit.pairs import pair_on

GB = 1024**3
OUTAGE = ("cost", "--outage", "4h", "--rate", "50", "--size", "2KB")


async def test_tiers_sizes_and_bytes_in_use_are_read() -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0, "premium", 1)]) as emulator:
        pair = pair_on(emulator, 3)
        await provision(pair)
        found = await read_backlog(pair)
        assert (found.capacity.secondary.tier, found.capacity.primary.tier) == (PREMIUM, STANDARD)
        assert (found.room, found.notes) == (BacklogRoom(3, 15 * GB, 0, partitioned=False), [])


async def test_a_partitioned_queue_has_room_for_its_size_in_every_partition() -> None:
    async with Emulator() as emulator:
        pair = pair_on(emulator, 2)
        await provision(pair)
        await create_queue(pair.secondary, Queue(**asdict(queue_spec("contoso", 2)), enable_partitioning=True))
        assert (await read_backlog(pair)).room == BacklogRoom(3, (5 + 5 + 80) * GB, 0, partitioned=True)


async def test_without_queues_or_permission_the_rest_is_assumed() -> None:
    async with Emulator() as emulator:
        pair = pair_on(emulator, 4)
        found = await read_backlog(pair)
        assert (found.room, found.notes) == (room_of(4), ["contoso-dr has no backlog queues yet; 4 are assumed"])
        for namespace in emulator.namespaces.values():
            namespace.keys = (AuthorizationRule("listen", "key", "other", frozenset({AccessRight.LISTEN})),)
        found = await read_backlog(pair_on(emulator, 4))
        assert (found.capacity.secondary.tier, found.room) == (STANDARD, room_of(4))
        assert [note.split(":")[0] for note in found.notes] == [
            "contoso could not be read, and Standard is assumed",
            "contoso-dr could not be read, and Standard is assumed",
        ]


async def test_a_wrong_key_is_an_error_and_so_is_a_basic_secondary() -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0, "basic")]) as emulator:
        pair = pair_on(emulator)
        with pytest.raises(UsageError, match="contoso-dr: a Basic namespace cannot have backlog queues"):
            await read_backlog(pair)
        emulator.namespaces["contoso"].keys = (
            AuthorizationRule("RootManageSharedAccessKey", "key", "other", frozenset(AccessRight)),
        )
        with pytest.raises(NotAuthenticated):
            await read_backlog(pair)


async def test_the_command_prints_what_it_read() -> None:
    async with Emulator() as emulator:
        env = environment(emulator, NO_COLOR="1")
        await provision(pair_on(emulator, 2))

        async def ran(*words: str) -> tuple[int, str, str]:
            return await command.finished(await command.start(*OUTAGE, *words, env=env))

        code, out, err = await ran("--live", "-o", "json")
        found: dict[str, Any] = json.loads(out)
        assert (code, err, found["live"], found["backlog"]["queues"]) == (0, "", True, 2)
        assert [each["secondary"] for each in found["tiers"]] == [{"tier": "Standard", "units": None}]
        code, out, err = await ran("--live")
        assert (code, err) == (0, "")
        assert "full: 2 backlog queues of 10.0 GB in all are full after 1d 5h" in out.splitlines()
