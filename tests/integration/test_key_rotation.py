"""Keys that change while a program runs: it reads the file, or the Key Vault, again when the service refuses one."""

import asyncio
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp_client.client import connect
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.azure import fetched_secrets
from sbpair.azure.atom import open_atom
from sbpair.azure.data_plane import open_sender
from sbpair.config import load_pair
from sbpair.failover.entity_states import State
from sbpair.model.entities import Queue
from sbpair.model.pair import Pair
from sbpair.relay.relay_settings import load_relay_pair
from sbpair.replay.run_description import NamespaceAccess
from sbpair.testing import Emulator
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, Rig, a_message, ids
from tests.kit.mounted_keys import MountedKey
from tests.kit.running import Running
from tests.kit.sas import sign
from tests.kit.secret_managers import secret_managers
from tests.kit.waiting import PATIENCE_SECONDS, until
from tests.relay.relay_pairs import PATHS, echo_socket, open_pair
from tests.replication.both import Both, drained
from tests.syphon.worlds import world

SIDES = ("primary", "secondary")

pytestmark = PAIRED_CLIENTS


def mounted(folder: Path, namespaces: Any) -> tuple[MountedKey, MountedKey]:
    primary, secondary = (MountedKey(folder / each.name, each) for each in namespaces)
    return primary, secondary


def pair_of(keys: tuple[MountedKey, MountedKey], **environ: str) -> Pair:
    """Return the pair that a configuration by files makes."""
    for side, key in zip(SIDES, keys, strict=True):
        environ[f"SBPAIR_{side.upper()}_CONNECTION_STRING_FILE"] = str(key.path)
        environ[f"SBPAIR_{side.upper()}_NAME"] = key.namespace.name
    return load_pair(environ={"HOME": "/nonexistent", **environ})


def refused_by(error: BaseException, key: MountedKey) -> bool:
    return isinstance(error, errors.NotAuthenticated) and str(key.path) in error.hint and error.exit_code == 5


def drop_connections(emulator: Emulator, *names: str) -> None:
    for name in names:
        emulator.faults.drop(name, count=1)


async def test_a_watch_goes_on_with_the_next_key_and_loses_nothing(tmp_path: Path) -> None:
    async with world(2) as w:
        keys = mounted(tmp_path, w.namespaces)
        w.pair = replace(pair_of(keys), backlog_queues=2)
        w.strand(*range(10), index=0)
        async with w.watching() as task:
            for turn in range(1, 4):
                await until(lambda turn=turn: len(w.destination().messages.peek(0, 100)) == 10 * turn)
                keys[turn % 2].regenerate()
                drop_connections(w.emulator, "contoso", "contoso-dr")
                w.strand(*range(10 * turn, 10 * turn + 10), index=turn % 2)
            await until(lambda: len(w.destination().messages.peek(0, 100)) == 40)
        result = task.result()
        assert (result.exit_code, result.receipt.sent, result.receipt.in_doubt) == (0, 40, 0)


@pytest.mark.parametrize("side", SIDES)
async def test_a_watch_ends_if_the_file_has_the_refused_key(tmp_path: Path, side: str) -> None:
    async with world() as w:
        keys = mounted(tmp_path, w.namespaces)
        w.pair = pair_of(keys)
        w.strand(1)
        key = keys[SIDES.index(side)]
        async with w.watching() as task:
            await until(lambda: not w.backlog().messages.peek(0, 10))
            key.regenerate(and_file=False)
            drop_connections(w.emulator, key.namespace.name)
            w.strand(2)
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        [(_, error)] = task.result().failures
        assert (task.result().exit_code, refused_by(error, key), error.exit_code) == (5, True, 5)
        assert len(w.backlog().messages.peek(0, 10)) == 1


@pytest.mark.parametrize("text", ["", "\0", "no connection string", "x" * 70_000])
async def test_a_file_that_is_no_key_is_waited_for(tmp_path: Path, text: str) -> None:
    async with world() as w:
        keys = mounted(tmp_path, w.namespaces)
        w.pair, key = pair_of(keys), keys[0]
        key.regenerate(and_file=False)
        key.write(text)
        with pytest.raises(errors.Unavailable, match="no other one can be read"):
            async with open_atom(w.pair.primary) as atom:
                await atom.tier_name()
        key.update()
        w.strand(1)
        async with w.watching():
            await until(lambda: len(w.destination().messages.peek(0, 10)) == 1)
            key.regenerate(and_file=False)
            key.write(text)
            drop_connections(w.emulator, key.namespace.name)
            w.strand(2)
            await w.told_of(object, lambda event: "no other one can be read" in str(getattr(event, "reason", "")))
            key.update()
            await until(lambda: len(w.destination().messages.peek(0, 10)) == 2)


async def test_every_client_signs_with_the_next_key(tmp_path: Path) -> None:
    async with Emulator() as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        key = MountedKey(tmp_path / "keys", namespace)
        end = pair_of((key, MountedKey(tmp_path / "others", emulator.namespaces["contoso-dr"]))).primary
        async with open_atom(end) as atom, connect(end) as amqp:
            await atom.create(Queue("first"))
            await amqp.sender("orders")
            key.regenerate()
            assert await atom.create(Queue("second"))
            key.regenerate()
            assert await atom.tier_name() == "Standard"
            key.regenerate()
            # A claim is per entity: this one is new on the same connection.
            await amqp.receiver("first")
            key.regenerate()
            async with open_sender(end, "orders"):
                pass
            key.regenerate()
            assert await asyncio.gather(*(atom.counts("orders") for _ in range(20)))


async def test_an_expired_signature_is_dated_until_the_file_has_another(tmp_path: Path) -> None:
    async with Emulator() as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        key, rule = MountedKey(tmp_path / "keys", namespace), namespace.keys[0]

        def put(expires_at: float) -> None:
            token = sign(rule, f"sb://{namespace.authority}/", int(expires_at))
            address = namespace.connection_string.split(";")[0]
            key.write(f"{address};SharedAccessSignature={token};UseDevelopmentEmulator=true")

        put(1_767_225_600)
        end = pair_of((key, MountedKey(tmp_path / "others", emulator.namespaces["contoso-dr"]))).primary

        async def link() -> None:
            async with connect(end) as amqp:
                await amqp.sender("orders")

        async def read() -> None:
            async with open_atom(end) as atom:
                await atom.tier_name()

        async def sdk() -> None:
            async with open_sender(end, "orders"):
                pass

        for use in (link, read, sdk):
            with pytest.raises(errors.NotAuthenticated, match="expired at 2026-01-01 00:00:00 UTC") as refused:
                await use()
            assert refused_by(refused.value, key)
        put(time.time() + 600)
        for use in (link, read, sdk):
            await use()


def test_a_task_reads_the_file_of_a_key_where_it_runs(tmp_path: Path) -> None:
    with Running() as running:
        keys = mounted(tmp_path, (running.namespace, running.other))
        end = pair_of(keys).primary
        access = pickle.loads(pickle.dumps(NamespaceAccess.from_endpoint(end)))  # noqa: S301  # its own
        assert (access.variables, access.endpoint({})) == ((), end)
        keys[0].regenerate()
        assert access.endpoint({}) != end
        keys[0].path.unlink()
        with pytest.raises(errors.UsageError, match="cannot be read: No such file"):
            access.endpoint({})


@pytest.mark.parametrize("form", ["CONNECTION_STRING", "CONNECTION_STRING_FILE"])
async def test_a_key_vault_is_read_again_when_its_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    fetched_secrets._fetched.cache_clear()
    async with Emulator() as emulator, secret_managers({}) as managers:
        for name, value in managers.environment.items():
            monkeypatch.setenv(name, value)
        key = MountedKey(tmp_path / "keys", emulator.namespaces["contoso"])
        managers.secrets["primary"] = key.namespace.connection_string
        reference = "https://orders-kv.vault.azure.net/secrets/primary"
        key.write(f"{reference}\n")
        source = str(key.path) if form.endswith("FILE") else "SBPAIR_PRIMARY_CONNECTION_STRING"
        environ = {f"SBPAIR_PRIMARY_{form}": source if form.endswith("FILE") else reference}
        environ |= {"SBPAIR_PRIMARY_NAME": "contoso", "SBPAIR_SECONDARY_NAMESPACE": "other", "HOME": "/nonexistent"}
        end = (await asyncio.to_thread(load_pair, environ=environ)).primary
        asked = len(managers.requests)
        async with open_atom(end) as atom:
            await atom.tier_name()
            key.regenerate(and_file=False)
            with pytest.raises(errors.NotAuthenticated) as refused:
                await atom.tier_name()
            assert source in refused.value.hint
            managers.secrets["primary"] = key.namespace.connection_string
            statuses = {403: errors.NotAuthorized, 503: errors.Unavailable, 404: errors.NotAuthenticated}
            for status, error in statuses.items():
                managers.status = status
                with pytest.raises(error):
                    await atom.tier_name()
            managers.status = None
            await atom.tier_name()
            # A list that is refused for good is followed by a link, which asks, too.
            assert len(managers.requests) == asked + 7


async def test_each_key_of_a_list_follows_its_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched_secrets._fetched.cache_clear()
    async with Emulator() as emulator, secret_managers({}) as managers:
        for name, value in managers.environment.items():
            monkeypatch.setenv(name, value)
        namespace = emulator.namespaces["contoso-dr"]
        queues = [namespace.create_queue(f"q{index}") for index in (0, 1)]
        rights = frozenset({AccessRight.LISTEN, AccessRight.SEND})

        def regenerate(number: int, *, and_vault: bool = True) -> None:
            for at, queue in enumerate(queues):
                rule = AuthorizationRule("own", f"key{number}{at}", "", rights)
                queue.update(replace(queue.description, authorization_rules=(rule,)))
                text = namespace.connection_string.partition(";")[0] + ";SharedAccessKeyName=own;SharedAccessKey="
                text += f"{rule.primary_key};EntityPath={queue.path};UseDevelopmentEmulator=true"
                managers.secrets |= {queue.path: text} if and_vault else {}

        regenerate(0)
        vault = "https://orders-kv.vault.azure.net/secrets"
        config = tmp_path / "config.toml"
        config.write_text('[pairs.p]\nprimary.namespace = "other"\nsecondary.connection_string_env = ["A", "B"]\n')
        environ = {"HOME": "/nonexistent", "A": f"{vault}/q0", "B": f"{vault}/q1", "SBPAIR_CONFIG": str(config)}
        end = (await asyncio.to_thread(load_pair, environ=environ)).secondary
        regenerate(1)
        async with connect(end) as amqp:
            await amqp.receiver("q1")
        async with open_sender(end, "q0"):
            pass
        regenerate(2, and_vault=False)
        with pytest.raises(errors.NotAuthenticated) as refused:
            async with connect(end) as amqp:
                await amqp.receiver("q1")
        assert "the key in B:" in refused.value.hint


# Paired clients


@contextmanager
def rig_with_files(folder: Path) -> Iterator[tuple[Rig, tuple[MountedKey, MountedKey]]]:
    with Running() as running:
        rig = Rig(running, queues=2)
        keys = mounted(folder, (running.namespace, running.other))
        rig.pair = replace(pair_of(keys), backlog_queues=2, failover_interval=0)
        yield rig, keys


@KINDS
def test_a_paired_client_sends_on_with_the_next_key(tmp_path: Path, kind: str) -> None:
    with rig_with_files(tmp_path) as (rig, keys), rig.sending(kind, retries=3) as (sender, client, log):
        sender.send_messages(a_message("a"))
        for number in range(3):
            rig.do(keys[0].regenerate)
            rig.do(lambda: drop_connections(rig.running.emulator, "contoso"))
            sender.send_messages(a_message(f"b{number}"))
        client.force_failover()
        sender.send_messages(a_message("c"))
        rig.do(keys[1].regenerate)
        sender.send_messages(a_message("d"))
        assert ids(rig.in_queue(rig.orders)) == ["a", "b0", "b1", "b2"]
        assert sorted(ids(rig.in_backlog())) == ["c", "d"]
        assert (log.path, log.doubtful_ids <= {"b0", "b1", "b2"}) == ([State.FORCED], True)


@KINDS
def test_a_first_send_signs_with_the_next_key(tmp_path: Path, kind: str) -> None:
    with rig_with_files(tmp_path) as (rig, keys), rig.sending(kind) as (sender, client, log):
        rig.do(keys[0].regenerate)
        sender.send_messages(a_message("a"))
        rig.do(keys[1].regenerate)
        client.force_failover()
        sender.send_messages(a_message("b"))
        assert (ids(rig.in_queue(rig.orders)), ids(rig.in_backlog())) == (["a"], ["b"])
        assert (log.path, log.doubtful_ids) == ([State.FORCED], set())


@KINDS
def test_a_paired_client_fails_if_the_file_has_the_refused_key(tmp_path: Path, kind: str) -> None:
    with rig_with_files(tmp_path) as (rig, keys), rig.sending(kind, retries=3) as (sender, _, log):
        rig.do(lambda: keys[0].regenerate(and_file=False))
        with pytest.raises(errors.NotAuthenticated) as refused:
            sender.send_messages(a_message("a"))
        assert f"The key is from {keys[0].path}." in refused.value.__notes__
        assert (log.path, rig.in_backlog()) == ([], [])


@KINDS
def test_a_receiver_and_its_senders_sign_with_the_next_key(tmp_path: Path, kind: str) -> None:
    with Running() as running:
        both = Both(running)
        keys = mounted(tmp_path, (running.namespace, running.other))
        both.pair = pair_of(keys)
        for key in keys:
            both.do(key.regenerate)
        with both.active(kind, retries=3) as (sender, _):
            sender.send_messages(a_message("a"))
        for key in keys:
            both.do(key.regenerate)
        with both.receiver(kind) as (receiver, _):
            assert drained(both, receiver) == ["a"]


# The relay


async def test_a_relay_goes_on_with_the_next_key(tmp_path: Path) -> None:
    async with open_pair() as bench:
        environ = {"HOME": "/nonexistent"}
        keys = []
        for side in SIDES:
            namespace = bench.emulator.namespaces[bench.namespace(side)]
            keys.append(MountedKey(tmp_path / side, namespace, f";EntityPath={PATHS[side]}"))
            environ[f"SBPAIR_RELAY_{side.upper()}_CONNECTION_STRING_FILE"] = str(keys[-1].path)
        bench.pair = load_relay_pair(environ=environ)
        for key in keys:
            key.regenerate()
        listener = await bench.listen(on_websocket=echo_socket)
        assert listener.up_sides == ("primary", "secondary")
        client = await bench.client(load_relay_pair(environ=environ))
        for key in keys:
            key.regenerate()
        parts = (part for part in [b"in ", b"parts"])
        for body in (b"whole", parts):
            answer = await client.request("POST", body=body)
            assert (answer.status, await answer.read()) == (200, b"whole" if body == b"whole" else b"in parts")
            keys[0].regenerate()
        for side in SIDES:
            bench.emulator.faults.relay_drop_listeners(bench.namespace(side), PATHS[side])
        await until(lambda: bench.kinds("SideUp") == ["SideUp"] * 4)
        socket = await client.connect()
        await socket.close()
        keys[0].regenerate(and_file=False)
        with pytest.raises(errors.NotAuthenticated):
            await client.request("GET")
        assert bench.kinds("SideFailed", "RolesSwapped") == []
