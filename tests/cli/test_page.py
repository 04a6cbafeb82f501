"""The page over HTTP: what it shows, what it does, and what it refuses; the namespaces as they change."""

import asyncio
import json
import re
import signal
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sbpair.amqp.message import Header, Properties
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.cli.page.documents import PageDocuments
from sbpair.cli.page.emulator_page import EmulatorSource
from sbpair.cli.page.overview import KEEP_SECONDS, SAMPLE_SECONDS, EntityRow, NamespaceReading, Overview
from sbpair.cli.page.pair_source import PairSource
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.errors import Unreachable
from sbpair.runs.database import RunDatabase, StateOwner
from sbpair.runs.run_log import RunEntry
from tests.cli.page_world import BACKLOG, HOSTILE, message, page_world, pair_page
from tests.faults.simulation.loop import VirtualLoop
from tests.kit import command
from tests.kit.pairs import pair_on
from tests.kit.stranded import put


def held(queue: QueueEntity) -> int:
    return len(queue.messages.peek(0, 100))


def rows_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for each in document["namespaces"] for row in each["entities"]}


# What it shows


async def test_a_browser_finds_the_page_at_the_port_of_the_emulator() -> None:
    async with page_world() as world, aiohttp.ClientSession() as http:
        root = f"http://{world.primary.authority}/"
        async with http.get(root, headers={"Accept": "text/html,*/*"}) as answer:
            assert (answer.status, answer.url.path, answer.content_type) == (200, "/$page/", "text/html")
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "Access-Control-Allow-Origin" not in answer.headers
        for name in ("page.js", "page.css"):
            assert (await world.get(name))[0] == 200
        # A client of the service gets its own answer there.
        assert (await http.get(root)).status != 200


async def test_events_have_all_entities_first_and_then_what_changed() -> None:
    async with page_world() as world, aiohttp.ClientSession() as http, http.get(f"{world.url}events") as stream:
        found = rows_of(json.loads((await stream.content.readline())[5:]))
        orders = found["orders"]
        assert (orders["active"], orders["dead_letter"], orders["line"]) == (3, 2, [3])
        assert orders["oldest"] > 1_000_000_000
        assert [found[each]["kind"] for each in ("orders", "events", "events/Subscriptions/audit", BACKLOG)] == [
            *("queue", "topic", "subscription", "backlog")
        ]
        await stream.content.readline()
        put(world.orders, message(9))
        assert rows_of(json.loads((await stream.content.readline())[5:])).keys() == {"orders"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("peek?side=contoso&path=orders", {"schema": "sbpair/peek/1", "entity": "orders", "complete": True}),
        ("peek?side=contoso&path=orders&from=5", {"complete": True}),
        ("peek?side=contoso&path=orders&dead_letters=1", {"entity": "orders/$deadletterqueue"}),
        ("deadletters?side=contoso&path=orders", {"messages": 2, "exact": True}),
        ("entity?side=contoso&path=orders&kind=queue", {"rules": [], "sessions": []}),
        ("entity?side=contoso&path=events&kind=topic", {"rules": []}),
        (
            "entity?side=contoso&path=events/subscriptions/audit&kind=subscription",
            {"rules": [{"name": "$Default", "filter": "1=1", "action": ""}]},
        ),
        ("runs", {"schema": "sbpair/runs/1", "runs": []}),
        ("control", {"faults": {}}),
    ],
)
async def test_documents_are_those_of_the_commands(path: str, expected: dict[str, Any]) -> None:
    async with page_world() as world:
        status, found = await world.get(path)
        assert status == 200
        assert {name: found[name] for name in expected} == expected


async def test_a_message_has_its_fields_and_destination() -> None:
    async with page_world() as world:
        [first, *_] = (await world.get("peek?side=contoso&path=orders"))[1]["messages"]
        assert (set(first["properties"]), first["body"]) == ({"paid", HOSTILE}, '{"number": 2}')
        assert first["properties"]["paid"] is True
        [group] = (await world.get("deadletters?side=contoso&path=orders"))[1]["groups"]
        assert (group["reason"], group["messages"]) == ("CardDeclined", 2)
        [lost] = (await world.get(f"peek?side=contoso-dr&path={BACKLOG}"))[1]["messages"]
        assert lost["destination"] == "orders"


async def test_a_message_expires_after_a_time_to_live_above_49_days() -> None:
    async with page_world() as world:
        header, life_ms = Header(ttl=0xFFFFFFFF).encode(), 60 * 24 * 3_600_000
        for number, times in ((8, {"creation_time": 5, "absolute_expiry_time": 5 + life_ms}), (9, {})):
            put(world.orders, message(number, header=header, properties=Properties(subject="s", **times).encode()))
        *_, long, unlimited = (await world.get("peek?side=contoso&path=orders"))[1]["messages"]
        lives = datetime.fromisoformat(long["expires_at"]) - datetime.fromisoformat(long["enqueued_at"])
        assert (lives.days, unlimited["expires_at"]) == (60, None)


async def test_sessions_have_their_locks_and_owners() -> None:
    async with page_world() as world:
        put(world.visits, message(1, properties=Properties(message_id="v", group_id="s1").encode()))
        lock = world.visits.messages.accept("s1")  # type: ignore[attr-defined]  # a queue with sessions
        lock.owner = "a client"
        lock.receive(1)
        [session] = (await world.get("entity?side=contoso&path=visits&kind=queue"))[1]["sessions"]
        assert session == {"id": "s1", "locked_until": lock.locked_until_ms, "locked": 1, "owner": "a client"}


async def test_a_namespace_that_is_down_is_shown_as_it_was() -> None:
    async with page_world() as world, aiohttp.ClientSession() as http, http.get(f"{world.url}events") as stream:
        await stream.content.readline()
        await stream.content.readline()
        await world.act("fault", {"kind": "namespace-down", "namespace": "contoso"})
        document = json.loads((await stream.content.readline())[5:])
        assert [bool(each["reason"]) for each in document["namespaces"]] == [True, False]
        assert (await world.get("page.js"))[0] == 200


# What it does

DEAD = {"side": "contoso", "path": "orders"}


@pytest.mark.parametrize(
    ("name", "values", "answer"),
    [
        ("send", {**DEAD, "message": {"body": "x", "message_id": "new", "properties": {"n": 1}}}, {"sent": 1}),
        ("resubmit", DEAD, {"sent": 2, "stayed": 0}),
        ("resubmit", {**DEAD, "reason": "CardDeclined"}, {"sent": 2, "stayed": 0}),
        ("resubmit", {**DEAD, "reason": "another"}, {"sent": 0, "stayed": 2}),
        ("remove", DEAD, {"deleted": 2}),
        ("purge", DEAD, {"deleted": 3}),
        ("create", {"side": "contoso", "kind": "topic", "path": "news"}, {"created": "news"}),
        ("create", {"side": "contoso", "path": "events/subscriptions/b"}, {"created": "events/subscriptions/b"}),
        (
            "create",
            {"side": "contoso", "kind": "queue", "path": "q", "properties": {"requires_session": True}},
            {"created": "q"},
        ),
        ("delete", DEAD, {"deleted": "orders"}),
        (
            "delete",
            {"side": "contoso", "path": "events/Subscriptions/audit"},
            {"deleted": "events/Subscriptions/audit"},
        ),
        ("fault", {"kind": "latency", "namespace": "contoso", "ms": 1}, {"id": "fault-1"}),
    ],
)
async def test_an_act_does_what_its_name_says(name: str, values: dict[str, Any], answer: dict[str, Any]) -> None:
    async with page_world() as world:
        assert await world.act(name, values) == (200, answer)
        there = {**world.primary.entities, **world.primary.topic("events")._subscriptions}
        moved = {"resubmit": answer.get("sent", 0), "purge": -3, "send": 1}.get(name, 0)
        dead = {"resubmit": 2 - answer.get("sent", 0), "remove": 0}.get(name, 2)
        if name == "delete":
            assert values["path"].rpartition("/")[2] not in there
        else:
            assert (held(world.orders), len(world.orders.dead_letters)) == (3 + moved, dead)
            assert name != "create" or values["path"].rpartition("/")[2] in there
        assert bool(world.emulator.faults.active()) == (name == "fault")


async def test_the_dead_letters_of_a_backlog_queue_go_where_they_belong() -> None:
    async with page_world() as world:
        [each] = world.backlog.messages.receive(1)
        world.backlog.messages.dead_letter(each.lock_token, "Expired")
        values = {"side": "contoso-dr", "path": BACKLOG}
        assert await world.act("resubmit", values) == (200, {"sent": 1, "stayed": 0})
        assert held(world.orders) == 4


async def test_dead_letters_of_a_session_go_back_into_it() -> None:
    async with page_world() as world:
        put(world.visits, message(1, properties=Properties(message_id="v", group_id="s1").encode()))
        lock = world.visits.messages.accept("s1")  # type: ignore[attr-defined]  # a queue with sessions
        lock.checked().dead_letter(lock.receive(1)[0].lock_token)
        lock.close(failed=False)
        assert await world.act("resubmit", {**DEAD, "path": "visits"}) == (200, {"sent": 1, "stayed": 0})
        assert world.visits.messages.list_sessions() == ["s1"]  # type: ignore[attr-defined]


async def test_the_clock_goes_forward_and_a_fault_ends() -> None:
    async with page_world() as world:
        before = world.emulator.clock.now_ms()
        _, found = await world.act("clock", {"advance_ms": 7_200_000})
        assert found["now_ms"] - before >= 7_200_000
        assert (await world.get("peek?side=contoso&path=orders"))[0] == 200
        # Its messages are two hours older for a browser, whose clock stays.
        [row, *_] = [row for row in (await EmulatorSource(world.emulator).read())[0].rows if row.path == "orders"]
        assert row.oldest == pytest.approx(time.time() - 7_200, abs=60)
        assert (await world.act("send", {**DEAD, "message": {"body": "x"}}))[0] == 200
        assert (await world.act("clock", {"advance_ms": 283_824_000_000_000}))[0] == 400
        _, begun = await world.act("fault", {"kind": "latency", "namespace": "contoso", "ms": 1})
        assert (await world.get("control"))[1]["faults"].keys() == {begun["id"]}
        assert await world.act("end-fault", begun) == (200, begun)
        assert not world.emulator.faults.active()


async def test_head_has_the_status_of_get_and_no_body() -> None:
    async with page_world() as world:
        for path, status in (("", 200), ("page.js", 200), ("control", 200), ("nothing", 404)):
            assert await world.head(path) == (status, b"")


# What it refuses


@pytest.mark.parametrize(
    ("path", "headers", "status", "text"),
    [
        ("", {"Host": "evil.example"}, 403, "Host"),
        ("events", {"Host": "evil.example"}, 403, "Host"),
        ("events", {"Sec-Fetch-Site": "cross-site"}, 403, "another origin"),
        ("events", {"Origin": "https://evil.example"}, 403, "another origin"),
        ("", {"Origin": "null"}, 403, "another origin"),
        ("nothing", {}, 404, "no such document"),
        ("page.py", {}, 404, "no such document"),
        ("runs/260101", {}, 404, "no state directory"),
        ("peek?side=elsewhere&path=orders", {}, 404, "no namespace"),
        ("peek?side=contoso&path=missing", {}, 404, "missing"),
        ("peek?side=contoso&path=events", {}, 400, "topic"),
        ("peek?side=contoso&path=orders&from=-1", {}, 400, "sequence number"),
        ("peek?side=contoso&path=orders&from=9223372036854775808", {}, 400, "sequence number"),
        ("entity?side=contoso&path=missing&kind=queue", {}, 404, "missing"),
    ],
)
async def test_a_wrong_request_is_refused(path: str, headers: dict[str, str], status: int, text: str) -> None:
    async with page_world() as world:
        found, document = await world.get(path, **headers)
        assert (found, text in document["error"]["message"]) == (status, True), document


@pytest.mark.parametrize(
    ("name", "values", "headers", "text"),
    [
        ("purge", DEAD, {"X-Page-Token": "x"}, "not the token of this page"),
        ("purge", DEAD, {"X-Page-Token": "é"}, "not the token of this page"),
        ("purge", DEAD, {"Host": "evil.example"}, "Host"),
        ("purge", DEAD, {"Sec-Fetch-Site": "same-site"}, "another origin"),
        ("purge", [], {}, "not a JSON object"),
        ("empty", DEAD, {}, "no act 'empty'"),
        ("purge", {"side": "contoso"}, {}, "has no path"),
        ("purge", {"side": "contoso", "path": None}, {}, "has no path"),
        ("purge", {"side": "contoso", "path": "\ud800"}, {}, "has no path"),
        ("resubmit", {**DEAD, "reason": ["x"]}, {}, "reason is not a text"),
        ("purge", {"side": "x", "path": "orders"}, {}, "no namespace 'x'"),
        ("purge", {"side": "contoso", "path": "missing"}, {}, "missing"),
        ("send", {**DEAD, "message": {"body": "x", "colour": "red"}}, {}, "unknown field 'colour'"),
        ("send", {**DEAD, "message": None}, {}, "expected a JSON object"),
        ("send", {"side": "contoso", "path": "missing", "message": {"body": "x"}}, {}, "missing"),
        ("create", {**DEAD, "kind": "queue"}, {}, "exists already"),
        ("create", {"side": "contoso", "kind": "room", "path": "a"}, {}, "kind is not queue or topic"),
        ("create", {"side": "contoso", "kind": ["queue"], "path": "a"}, {}, "kind is not queue or topic"),
        ("create", {"side": ["contoso"], "kind": "queue", "path": "a"}, {}, "no namespace"),
        ("create", {"side": "contoso", "kind": "queue", "path": "a?b"}, {}, "not a valid path"),
        (
            "create",
            {"side": "contoso", "kind": "queue", "path": "a", "properties": {"x": 1}},
            {},
            "unknown key 'x' of a queue",
        ),
        (
            "create",
            {"side": "contoso", "kind": "queue", "path": "a", "properties": {"lock_duration": "5 minutes"}},
            {},
            "expected a duration such as 90s",
        ),
        (
            "create",
            {"side": "contoso", "kind": "queue", "path": "a", "properties": {"max_message_size_in_kilobytes": 2048}},
            {},
            "refused it",
        ),
        ("create", {"side": "contoso", "kind": "queue", "path": "a", "properties": 7}, {}, "not an object"),
        ("delete", {"side": "contoso", "path": "missing"}, {}, "missing"),
        ("fault", {"kind": "quake", "namespace": "contoso"}, {}, "quake"),
        ("end-fault", {"id": "fault-9"}, {}, "fault-9"),
        ("clock", {"advance_ms": -1}, {}, "advance_ms"),
        ("resubmit", {"side": "contoso", "path": "missing"}, {}, "missing"),
    ],
)
async def test_a_wrong_act_changes_nothing(name: str, values: Any, headers: dict[str, str], text: str) -> None:
    async with page_world() as world:
        status, document = await world.act(name, values, **headers)
        assert (status >= 400, text in document["error"]["message"]) == (True, True), document
        assert (held(world.orders), len(world.orders.dead_letters)) == (3, 2)


async def test_an_exposed_emulator_does_not_act() -> None:
    async with page_world(may_act=False) as world:
        assert await world.token() == ""
        assert "--page-acts" in (await world.get(""))[1]
        status, document = await world.act("purge", DEAD)
        assert (status, "only reads" in document["error"]["message"]) == (400, True)
        assert held(world.orders) == 3


# Readings


class Readings:
    """A source whose rows a test changes; `number` counts the readings."""

    def __init__(self) -> None:
        self.rows = [EntityRow("a", "queue", 1), EntityRow("b", "queue", 2)]
        self.reason = ""
        self.number = 0
        self.seconds = 0

    async def read(self) -> Sequence[NamespaceReading]:
        self.number += 1
        await asyncio.sleep(self.seconds)
        if self.reason:
            return [NamespaceReading.failed("primary", "contoso", Unreachable(self.reason))]
        return [NamespaceReading("primary", "contoso", self.rows)]


async def test_a_slow_reader_gets_the_newest_of_what_it_missed() -> None:
    source = Readings()
    overview = Overview(source.read)
    async with aclosing(overview.events()) as slow, aclosing(overview.events()) as other:
        assert json.loads(await anext(slow))["all"]
        await anext(other)
        for active in (5, 6, 7):
            source.rows[0] = EntityRow("a", "queue", active)
            await overview.read_again()
        assert {path: row["active"] for path, row in rows_of(json.loads(await anext(slow))).items()} == {"a": 7}
        del source.rows[1]
        await overview.read_again()
        gone = json.loads(await anext(slow))
        assert (gone["all"], rows_of(gone).keys()) == (True, {"a"})
        source.reason = "it is away"
        await overview.read_again()
        away = json.loads(await anext(slow))["namespaces"][0]
        assert (away["state"], away["reason"], away["entities"]) == ("down", "it is away", [])
        assert rows_of(json.loads(await anext(other))).keys() == {"a"}
    await overview.close()


def test_readings_end_after_the_last_reader_and_begin_with_the_next() -> None:
    async def main() -> None:
        loop, source = asyncio.get_running_loop(), Readings()
        overview = Overview(source.read, clock=loop.time)
        async with aclosing(overview.events()) as reader:
            await anext(reader)
            assert await anext(reader) == ""
        number = source.number
        assert number > 2
        await asyncio.sleep(SAMPLE_SECONDS / 2)
        source.rows[0] = EntityRow("a", "queue", 9)
        async with aclosing(overview.events()) as reader:
            await anext(reader)
            began = loop.time()
            assert rows_of(json.loads(await anext(reader)))["a"]["active"] == 9
            assert loop.time() - began < 1
        await asyncio.sleep(KEEP_SECONDS + 2 * SAMPLE_SECONDS)
        number = source.number
        await asyncio.sleep(KEEP_SECONDS)
        assert source.number == number
        async with aclosing(overview.events()) as reader:
            assert len(rows_of(json.loads(await anext(reader)))["a"]["line"]) == KEEP_SECONDS / SAMPLE_SECONDS
        await overview.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize(("reason", "least", "most"), [("", 2, 4), ("it is away", 20, 30)])
def test_readings_are_rare_if_they_take_long_unless_by_waiting(reason: str, least: int, most: int) -> None:
    async def main() -> None:
        source = Readings()
        source.reason, source.seconds = reason, 1
        overview = Overview(source.read, clock=asyncio.get_running_loop().time)
        async with aclosing(overview.events()) as reader:
            await anext(reader)
            await asyncio.sleep(80)
        assert least <= source.number <= most
        await overview.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


# A pair


async def test_a_pair_is_read_as_by_a_client() -> None:
    async with page_world() as world:
        source = PairSource(pair_on(world.emulator))
        primary, secondary = await source.read()
        rows = {row.path: row for row in (*primary.rows, *secondary.rows)}
        orders = rows["orders"]
        assert (orders.kind, orders.active, orders.dead_letter, orders.is_sample) == ("queue", 3, 2, False)
        assert orders.oldest is not None
        assert rows[BACKLOG].kind == "backlog"
        put(world.visits, message(1, properties=Properties(message_id="v", group_id="s1").encode()))
        assert await source.sessions("primary", "visits") == [{"id": "s1"}]
        world.primary.take_down()
        primary, _ = await source.read()
        assert (primary.rows, primary.state, bool(primary.reason)) == ((), "down", True)
        world.primary.bring_up()


async def test_the_note_of_a_pair_names_what_waits_in_archives(tmp_path: Path) -> None:
    async with page_world() as world:
        pair = pair_on(world.emulator)
        with RunDatabase(tmp_path, pair.ends) as state, closing(RunEntry(state, "replay run", run_id="r1")) as entry:
            entry.record({"archive": "s3://user:secret@bucket/x", "unsent": 5_153, "counted_ms": 0})
        owner = StateOwner(pair.ends, tmp_path)
        primary, secondary = await PairSource(pair, owner).read()
        expected = "~5 153 messages wait in run r1 at 1970-01-01T00:00:00Z: sbpair replay resume r1 --archive "
        assert (primary.note, secondary.note) == ("", f"{expected}'s3://user:***@bucket/x'")
        [run] = (await PageDocuments(PairSource(pair), owner).read("runs", {}))["runs"]
        assert (run["waiting"]["messages"], run["waiting"]["state"]) == (5_153, "interrupted")


async def test_without_manage_the_backlog_is_peeked() -> None:
    async with page_world() as world:
        listen = AuthorizationRule("listen", "SAS_KEY_VALUE", "2", frozenset((AccessRight.LISTEN,)))
        world.secondary.keys = (*world.secondary.keys, listen)
        credential = replace(pair_on(world.emulator).secondary.credential, name="listen")  # type: ignore[type-var]
        _, secondary = await PairSource(pair_on(world.emulator, 1, credential=credential)).read()
        [row] = secondary.rows
        assert (row.path, row.active, secondary.state, bool(secondary.note)) == (BACKLOG, 1, "up", True)
        lead, *others = secondary.headline.split("; ")
        assert re.fullmatch(r"1 message stranded since .* \(\d+[ms]\)", lead)
        assert others == ["primary up", "nothing on this machine moves them: run sbpair syphon --once"]
        unknown = replace(credential, name="nobody")
        _, secondary = await PairSource(pair_on(world.emulator, 1, credential=unknown)).read()
        assert (secondary.rows, secondary.state, bool(secondary.reason)) == ((), "refused", True), secondary


async def test_the_command_shows_a_pair_its_runs_and_acts_on_nothing(tmp_path: Path) -> None:
    async with page_world() as world, aiohttp.ClientSession() as http:
        env = command.environment(world.emulator, NO_COLOR="1")
        words = ("--state", str(tmp_path))
        code, _, said = await command.finished(await command.start("syphon", "--once", "--count", "1", *words, env=env))
        assert code == 0, said
        async with pair_page(world, *words) as (url, process):
            [run] = (await (await http.get(f"{url}runs")).json())["runs"]
            assert (run["kind"], run["outcome"]) == ("syphon", "done")
            async with http.get(f"{url}runs/{run['id']}") as report:
                assert "sandbox" in report.headers["Content-Security-Policy"]
                assert "syphon --once" in await report.text()
            async with http.post(f"{url}acts/purge", json=DEAD) as refused:
                assert refused.status == 400
            async with http.get(url, headers={"Host": "evil.example"}) as refused:
                assert refused.status == 403
            async with http.get(f"{url}events") as stream:
                assert rows_of(json.loads((await stream.content.readline())[5:]))["orders"]["active"] == 4
                process.send_signal(signal.SIGINT)
                await stream.content.read()
                assert await process.wait() == 0
