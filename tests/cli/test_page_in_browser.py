"""The page in a real browser: each view, acts, live changes, hostile contents, and a server that comes back."""

import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbpair.amqp.codec import encode
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Long, Symbol, Timestamp
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.cli.page.emulator_page import page_of
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.faults.fault_kinds import KINDS
from sbpair.testing import Emulator
from tests.cli.page_world import BACKLOG, HOSTILE, PageWorld, message, page_world, pair_page
from tests.kit import command
from tests.kit.stranded import put, stranded
from tests.kit.waiting import PATIENCE_SECONDS
from tests.move.test_binary_xml import BODIES

playwright = pytest.importorskip("playwright.async_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: Debian's package chromium"),
]

ORDERS = "#entity/contoso/queue/orders"


@asynccontextmanager
async def browsing(
    world: PageWorld, *, url: str = "", width: int = 1280, theme: str = "light"
) -> AsyncIterator[playwright.Page]:
    """Open the page in a browser. No script fails, nothing else is loaded, and no content of a message runs."""
    url = url or world.url
    wrong: list[str] = []
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(1_000 * PATIENCE_SECONDS)
        page = await context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(url) else None)
        await page.goto(url)
        await page.get_by_role("heading", name="contoso-dr").wait_for()
        yield page
        assert await page.title() == "sbpair"
        await browser.close()
    assert wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
async def test_no_view_scrolls_sideways(width: int, theme: str) -> None:
    async with page_world() as world, browsing(world, width=width, theme=theme) as page:
        for view in ("#", ORDERS, "#runs", "#control"):
            await page.goto(world.url + view)
            await page.locator("main > *:visible").first.wait_for()
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.goto(world.url + ORDERS)
        await page.get_by_role("button", name="Dead letters (2)").click()
        for shown in (
            page.get_by_role("table", name="Dead letters by reason").get_by_text("CardDeclined", exact=True),
            page.get_by_role("button", name="Resubmit these"),
        ):
            await shown.wait_for()
            box = await shown.bounding_box()
            assert box["x"] + box["width"] <= width
        await page.goto(world.url)
        await page.get_by_text("contoso/…/0", exact=True).wait_for()


async def serious(page: playwright.Page, modules: Path) -> list[str]:
    """Return what axe-core finds that is serious or critical: the rule, and the element."""
    await page.evaluate((modules / "node_modules/axe-core/axe.min.js").read_text())
    return await page.evaluate(
        """async () => (await axe.run()).violations.filter(each => ["serious", "critical"].includes(each.impact))
        .flatMap(each => each.nodes.map(node => `${each.id}: ${node.html} ${node.failureSummary}`))"""
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
async def test_axe_finds_nothing_serious_in_any_view(width: int, theme: str, modules: Path) -> None:
    async with page_world() as world, browsing(world, width=width, theme=theme) as page:
        for view in ("#", ORDERS, "#runs", "#control"):
            await page.goto(world.url + view)
            await page.locator("main > *:visible").first.wait_for()
            if view == ORDERS:
                await page.get_by_role("button", name="message 3").click()
                await page.get_by_role("button", name="Dead letters (2)").click()
                await page.get_by_role("button", name="Resubmit these").wait_for()
            assert await serious(page, modules) == []


async def test_the_keyboard_alone_opens_a_queue_and_its_message() -> None:
    async def reach(name: str) -> None:
        for _ in range(60):
            await page.keyboard.press("Tab")
            if name == await page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText"):
                break
        else:
            pytest.fail(f"Tab does not reach {name}")
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.keyboard.press("Enter")

    async with page_world() as world, browsing(world) as page:
        await reach("queue orders")
        await page.get_by_role("button", name="message 3").wait_for()
        await reach("message 3")
        await page.get_by_text(HOSTILE).first.wait_for()
        await reach("Dead letters (2)")
        await page.get_by_role("button", name="Resubmit these").wait_for()


async def test_the_overview_is_live_and_filtered_as_one_types() -> None:
    async with page_world() as world, browsing(world) as page:
        row = page.locator("tr", has=page.get_by_role("link", name="queue orders"))
        assert (await row.inner_text()).split()[:3] == ["orders", "3", "2"]
        put(world.orders, message(9))
        await row.get_by_text("4", exact=True).wait_for()
        assert await page.get_by_role("img", name="active in the last").count()
        await page.keyboard.press("/")
        await page.keyboard.type("VIS")
        await page.get_by_role("link", name="queue orders").wait_for(state="detached")
        assert await page.get_by_role("link", name="queue visits").is_visible()


async def test_a_message_and_why_it_is_dead_are_shown_as_text() -> None:
    async with page_world() as world, browsing(world) as page:
        await page.get_by_role("link", name="queue orders").click()
        await page.get_by_role("button", name="message 3").click()
        for text in (HOSTILE, "boolean", '{"number": 2}'):
            await page.get_by_text(text).first.wait_for()
        await page.get_by_role("button", name="hex").click()
        await page.get_by_text("7b 22 6e 75").wait_for()
        await page.get_by_role("button", name="Dead letters (2)").click()
        await (
            page.get_by_role("table", name="Dead letters by reason").get_by_text("CardDeclined", exact=True).wait_for()
        )
        await page.goto(f"{world.url}#entity/contoso-dr/backlog/{BACKLOG.replace('/', '%2F')}")
        await page.get_by_role("button", name="message 1").click()
        await page.get_by_text("orders: where this stranded message belongs").wait_for()


async def test_numbers_marks_and_long_bodies_are_shown_as_they_are() -> None:
    async with page_world() as world, browsing(world) as page:
        large = {"number": Long(2**53 + 1)}
        body = b'{"number": 9007199254740993, "text": "' + b"x" * 65_536 + b'"}'
        put(
            world.visits,
            message(
                9,
                properties=Properties(message_id="order\u202e9", group_id="s").encode(),
                application_properties=encode_map(APPLICATION_PROPERTIES, large),
                body=data_body(body),
            ),
        )
        await page.goto(world.url + "#entity/contoso/queue/visits")
        await page.get_by_role("button", name="message 1").click()
        for shown in ("order\\u202e9", "9007199254740993"):
            await page.get_by_text(shown, exact=True).first.wait_for()
        await page.get_by_role("button", name="JSON").click()
        await page.get_by_text('"number": 9007199254740993').wait_for()
        await page.get_by_role("button", name="hex").click()
        await page.get_by_text("40 bytes more").wait_for()


async def test_bodies_and_states_of_messages_are_shown() -> None:
    async with page_world() as world, browsing(world) as page:
        bodies = (value_body("a value"), section(SEQUENCE, encode([Long(1), "two"])), data_body(BODIES["string"]))
        for number, body in enumerate(bodies):
            put(world.backlog, message(number, body=body))
        await page.goto(f"{world.url}#entity/contoso-dr/backlog/{BACKLOG.replace('/', '%2F')}")
        for number, shown in ((2, "a value"), (3, "two"), (4, "hello")):
            await page.get_by_role("button", name=f"message {number}", exact=True).click()
            await page.get_by_label("Body", exact=True).filter(has_text=shown).wait_for()
        due = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(32_503_680_000_000)}
        put(world.orders, message(6, message_annotations=encode_map(MESSAGE_ANNOTATIONS, due)))
        await page.goto(world.url + ORDERS)
        await page.get_by_role("cell", name="scheduled for 3000-01-01 00:00:00Z").wait_for()


async def test_a_long_reason_is_cut_in_lists_and_whole_in_its_message() -> None:
    async with page_world() as world, browsing(world) as page:
        [each] = world.orders.messages.receive(1)
        description = "the card was declined; " * 100 + "call the bank"
        world.orders.messages.dead_letter(each.lock_token, "Declined " * 200, description)
        await page.goto(world.url + ORDERS)
        await page.get_by_role("button", name="Dead letters (3)").click()
        for table in ("Dead letters by reason", "Dead letters"):
            cell = page.get_by_role("table", name=table, exact=True).locator(".clamped", has_text="Declined D")
            lines = await cell.evaluate("each => [each.clientHeight, each.scrollHeight].map(all => all / 21.75)")
            assert round(lines[0]) == 4 < round(lines[1])
        await page.get_by_role("button", name="message 3").click()
        await page.get_by_role("definition").get_by_text("call the bank").wait_for()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 1280


def locked_until(ms: int, body: bytes) -> Sections:
    annotations = {Symbol("x-opt-locked-until"): Timestamp(ms)}
    return Sections(message_annotations=encode_map(MESSAGE_ANNOTATIONS, annotations), body=body)


async def test_malformed_messages_and_impossible_times_are_shown() -> None:
    async with page_world() as world, browsing(world) as page:
        cut_short, not_text = b"\x00\x53\x75\xa0\x09x", b"\x00\x53\x77\xa1\x01\xff"
        bodies = (cut_short, not_text, data_body(b"fine"))
        sections = [locked_until(at, body) for at, body in zip((0, -(2**63), 2**63 - 1), bodies, strict=True)]
        world.backlog.messages.enqueue([StoredMessage(each, 100) for each in sections])
        for stored, at in zip(world.backlog.messages.peek(2, 9), (-1, 253_402_300_800_000, 2**62), strict=True):
            stored.enqueued_at_ms = at
        await page.goto(f"{world.url}#entity/contoso-dr/backlog/{BACKLOG.replace('/', '%2F')}")
        for number, shown in ((0, ""), (3, "it cannot be read"), (4, "fine")):
            row = page.get_by_role("row").filter(has=page.get_by_role("button", name=f"message {number}", exact=True))
            assert "Z" not in await row.inner_text()
            await row.get_by_role("button").click()
            await page.get_by_label("Body", exact=True).filter(has_text=shown).last.wait_for()
        assert await page.get_by_role("term").get_by_text("Malformed").count() == 2


async def test_next_leads_through_all_messages_and_first_back() -> None:
    async with page_world() as world, browsing(world) as page:
        for number in range(46):
            put(world.orders, message(number))
        world.orders.messages.enqueue([StoredMessage(locked_until(0, b"\x00\x53\x75\xa0\x09x"), 100)])
        for number in range(55):
            put(world.orders, message(number))
        await page.goto(world.url + ORDERS)
        for name, first in (("Next 50", 53), ("Next 50", 103), ("First", 3)):
            await page.get_by_role("button", name=name).click()
            await page.get_by_role("button", name=f"message {first}", exact=True).wait_for()


async def test_what_is_gone_is_no_error() -> None:
    async with page_world() as world, browsing(world) as page:
        said: list[str] = []
        page.on("console", lambda each: said.append(each.text))
        await page.goto(world.url + ORDERS)
        await page.get_by_role("button", name="Description").click()
        await page.get_by_role("button", name="Delete this queue").click()
        await page.get_by_role("link", name="queue visits").wait_for()
        assert said == []
        await page.goto(world.url + "#run/260101")
        await page.get_by_text("no state directory is shown here").wait_for()


async def test_acts_are_done_by_one_click_and_shown_as_curl() -> None:
    async with page_world() as world, browsing(world, width=360) as page:
        await page.goto(world.url + ORDERS)
        await page.get_by_text("Send a message").click()
        await page.get_by_label("Body", exact=True).first.fill("it's <b>new</b>")
        await page.get_by_label("Properties, as JSON").fill('{"n": 1}')
        await page.get_by_role("button", name="Send", exact=True).click()
        await page.get_by_text("sent one message to orders").wait_for()
        assert len(world.orders.messages.peek(0, 9)) == 4
        await page.locator("#done").get_by_text("as curl").click()
        assert "acts/send'" in await page.locator("#done pre").inner_text()
        await page.get_by_label("Properties, as JSON").fill("no JSON")
        await page.get_by_role("button", name="Send", exact=True).click()
        await page.locator("#done").get_by_text("not valid JSON").wait_for()
        assert len(world.orders.messages.peek(0, 9)) == 4
        await page.get_by_role("button", name="Dead letters (2)").click()
        await page.get_by_role("button", name="Resubmit these").click()
        await page.get_by_text("resubmitted 2 dead letters").wait_for()
        await page.get_by_role("button", name="Messages", exact=True).click()
        await page.get_by_role("button", name="Purge").click()
        await page.get_by_text("removed 6 messages").wait_for()
        await page.get_by_role("button", name="Description").click()
        await page.get_by_role("button", name="Delete this queue").click()
        await page.get_by_text("deleted orders").wait_for()
        assert world.primary.find("orders") is None


async def test_an_entity_and_a_fault_are_made_by_keyboard_only() -> None:
    async with page_world() as world, browsing(world) as page:

        async def reach(name: str) -> None:
            for _ in range(80):
                await page.keyboard.press("Tab")
                at = await page.evaluate(
                    "(document.activeElement.name || document.activeElement.textContent || '').trim()"
                )
                if at == name:
                    return
            raise AssertionError(f"{name} cannot be reached by Tab")

        await reach("Create an entity")
        await page.keyboard.press("Enter")
        await reach("path")
        await page.keyboard.type("typed")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="queue typed").wait_for()
        await page.goto(f"{world.url}#control")
        await reach("kind")
        await page.keyboard.type("entity-down")
        await reach("entity")
        await page.keyboard.type("orders")
        await reach("Begin")
        await page.keyboard.press("Enter")
        await page.get_by_text("fault-1 is on").wait_for()
        assert [fault.entity for fault in world.emulator.faults.active().values()] == ["orders"]
        await page.get_by_role("button", name="End fault-1").click()
        await page.get_by_text("no fault is on").wait_for()
        # Every kind asks for its own fields.
        await page.get_by_label("Kind").select_option("refuse-requests")
        await page.get_by_label("status").fill("503")
        await page.get_by_role("button", name="Begin").click()
        await page.get_by_text("fault-2 is on").wait_for()
        assert await page.get_by_label("Kind").locator("option").all_inner_texts() == list(KINDS)
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="queue orders").wait_for()


async def test_more_pages_may_be_open_than_a_browser_has_connections() -> None:
    async with page_world() as world, browsing(world) as first:
        others = [await first.context.new_page() for _ in range(7)]
        for each in others:
            await each.goto(world.url)
            await each.bring_to_front()
            await each.get_by_role("link", name="queue orders").wait_for()
            # A browser without windows hides no page by itself.
            await each.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
            await each.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


async def test_what_is_typed_stays_and_wrong_links_lead_to_the_overview() -> None:
    async with page_world() as world, browsing(world) as page:
        await page.goto(world.url + ORDERS)
        await page.get_by_text("Send a message").click()
        body = page.get_by_label("Body", exact=True).first
        await body.fill("typed")
        await body.press("Escape")
        assert await body.input_value() == "typed"
        for wrong in ("#%", "#constructor", "#entity", "#nothing"):
            await page.goto(world.url + wrong)
            await page.get_by_role("link", name="queue orders").wait_for()


async def test_a_page_finds_its_server_again() -> None:
    async with page_world() as world, browsing(world) as page:
        port = int(world.primary.authority.rpartition(":")[2])
        await world.emulator.__aexit__()
        await page.get_by_text("the server does not answer").wait_for()
        again = Emulator([("contoso", port)], page=lambda emulator: page_of(emulator, may_act=True))
        async with again as emulator:
            emulator.namespaces["contoso"].create_queue("orders")
            emulator.namespaces["contoso"].create_queue("later")
            await page.get_by_role("link", name="queue later").wait_for()
            await page.get_by_role("link", name="Faults and clock").click()
            await page.get_by_role("button", name="Advance the clock").click()
            await page.locator("#done").get_by_text("the clock is at").wait_for()


# A pair


async def test_a_running_run_shows_its_rate_and_its_limit(tmp_path: Path) -> None:
    async with page_world() as world, pair_page(world, "--state", str(tmp_path)) as (url, _):
        for number in range(900):
            put(world.backlog, stranded(f"m{number}", "orders"))
        words = ("syphon", "--once", "--count", "1", "--rate", "20", "--state", str(tmp_path))
        process = await command.start(*words, env=command.environment(world.emulator))
        async with browsing(world, url=url) as page:
            await page.get_by_role("link", name="Runs").click()
            run = page.get_by_role("row", name="running")
            await run.get_by_text("left, about 1 min; limited to 20 messages/s by --rate; orders").wait_for()
            await run.get_by_role("link").focus()
            process.send_signal(signal.SIGINT)
            await page.get_by_role("row", name="stopped").wait_for()
            await page.keyboard.press("Enter")
            await page.frame_locator("iframe").get_by_text("syphon --once").first.wait_for()
            await page.get_by_role("link", name="← Runs").click()
            await page.get_by_role("row", name="stopped").get_by_role("link").hover()
            await page.mouse.down()
            async with page.expect_response(lambda answer: "/runs" in answer.url):
                pass
            await page.mouse.up()
            await page.locator("iframe").wait_for()
        await process.wait()


@pytest.mark.parametrize(
    ("rights", "state", "total"),
    [({AccessRight.LISTEN}, "up", "~250"), ({AccessRight.SEND}, "up", "?"), (None, "refused", "")],
)
async def test_a_pair_shows_what_its_key_may_read(rights: set[AccessRight] | None, state: str, total: str) -> None:
    async with page_world() as world:
        if rights is not None:
            own = AuthorizationRule("own", "SAS_KEY_VALUE", "2", frozenset(rights))
            world.secondary.keys = (*world.secondary.keys, own)
        for number in range(300):
            put(world.backlog, stranded(f"m{number}", "orders"))
        text = world.secondary.connection_string.replace("RootManageSharedAccessKey", "own")
        key = {"SBPAIR_SECONDARY_CONNECTION_STRING": text}
        async with pair_page(world, **key) as (url, _), browsing(world, url=url) as page:
            secondary = page.get_by_role("region", name="contoso-dr (secondary)")
            await secondary.get_by_text(f"{state} since").wait_for()
            await page.get_by_role("link", name="queue orders").wait_for()
            assert await page.get_by_role("button").count() == 0
            if state == "refused":
                assert await secondary.get_by_role("link").count() == 0
                return
            await secondary.get_by_text("the key for contoso-dr lacks a claim").wait_for()
            await secondary.get_by_role("row", name="10 entities").get_by_text(total, exact=True).wait_for()
            await secondary.get_by_role("link").first.click()
            if rights == {AccessRight.LISTEN}:
                await page.get_by_role("button", name="message 1", exact=True).click()
                await page.get_by_text("orders: where this stranded message belongs").wait_for()
            assert await page.get_by_role("button", name="Purge").count() == 0


async def test_a_pair_shows_which_namespace_is_down_and_comes_back() -> None:
    async with page_world() as world, pair_page(world) as (url, _):
        world.primary.take_down()
        world.secondary.take_down()
        async with browsing(world, url=url) as page:
            sides = [page.get_by_role("region", name=name) for name in ("contoso (primary)", "contoso-dr (secondary)")]
            for side in sides:
                await side.get_by_text("down since").wait_for()
            world.primary.bring_up()
            await page.get_by_role("link", name="queue orders").wait_for()
            await sides[0].get_by_text("up since").wait_for()
            assert await sides[1].get_by_text("down since").is_visible()
            world.primary.take_down()
            await sides[0].get_by_text("down since").wait_for()
            assert await page.get_by_role("link", name="queue orders").is_visible()
