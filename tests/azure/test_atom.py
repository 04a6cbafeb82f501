"""Provision and audit through the real SDK, against a small scripted management side on a real socket.

Its scripted answers include refusals and silence, which a well-behaved broker does not give.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from aiohttp import web

from sbpair import backlog, errors
from sbpair.azure.atom import open_atom
from sbpair.management.audit_findings import audit_exit_code
from sbpair.management.auditing import audit
from sbpair.management.calls import CONCURRENCY
from sbpair.management.provisioning import EntityReport, provision, provision_exit_code
from sbpair.model.pair import Endpoint, Pair, SasKey, SasToken
from sbpair.model.queues import Counts, QueueProvisioned, QueueSpec, Retrying
from sbpair.model.report import Outcome
from tests.kit.waiting import no_wait

GOLDEN = Path(__file__).parent / "golden" / "backlog-queue.xml"
SECRET = "c2VjcmV0a2V5"
ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = (
    '<CountDetails xmlns:d="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
    "<d:ActiveMessageCount>3</d:ActiveMessageCount><d:DeadLetterMessageCount>2</d:DeadLetterMessageCount>"
    "<d:ScheduledMessageCount>1</d:ScheduledMessageCount></CountDetails>"
)
NAMESPACE_INFO = (
    f'<entry xmlns="{ATOM}"><title>contoso-dr</title><content type="application/xml"><NamespaceInfo'
    f' xmlns="{SERVICE_BUS}"><MessagingSKU>Standard</MessagingSKU></NamespaceInfo></content></entry>'
)
EXISTS = (409, "<Error><Code>409</Code><Detail>SubCode=40900. Conflict.</Detail></Error>")
BUSY = (429, "<Error><Code>429</Code><Detail>SubCode=50004. The request was throttled.</Detail></Error>")


@dataclass
class Namespace:
    """A management side that keeps descriptions as XML; scripted answers come first."""

    queues: dict[str, str] = field(default_factory=dict)
    scripted: list[tuple[str, int, str]] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    silent: bool = False
    port: int = 0
    page: int = 100

    async def answer(self, request: web.Request) -> web.Response:
        path = unquote(request.rel_url.raw_path.lstrip("/"))
        self.seen.append((request.method, path))
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.read())
        if self.silent:
            await asyncio.Event().wait()
        for at, (wanted, status, body) in enumerate(self.scripted):
            if f"{request.method} {path}".startswith(wanted):
                del self.scripted[at]
                return web.Response(status=status, text=body, content_type="application/xml")
        return await self._serve(request, path)

    async def _serve(self, request: web.Request, path: str) -> web.Response:
        if path == "$namespaceinfo":
            return web.Response(text=NAMESPACE_INFO, content_type="application/atom+xml")
        if path == "$Resources/queues":
            return self._list(int(request.query["$skip"]), int(request.query["$top"]))
        if request.method == "PUT":
            if path.lower() in map(str.lower, self.queues):
                return web.Response(status=EXISTS[0], text=EXISTS[1])
            self.queues[path] = self._description(await request.text())
        found = next((name for name in self.queues if name.lower() == path.lower()), None)
        body = self._entry(found) if found else f'<feed xmlns="{ATOM}"><title>empty</title></feed>'
        return web.Response(
            text=body, content_type="application/atom+xml", status=201 if request.method == "PUT" else 200
        )

    def _list(self, skip: int, top: int) -> web.Response:
        top = min(top, self.page)
        names = list(self.queues)
        entries = "".join(map(self._entry, names[skip : skip + top]))
        after = f"https://x/$Resources/queues?$skip={skip + top}&amp;$top={top}"
        following = f'<link rel="next" href="{after}"/>' if skip + top < len(names) else ""
        feed = f'<feed xmlns="{ATOM}"><title>q</title><link rel="self" href="https://x/"/>{following}{entries}</feed>'
        return web.Response(text=feed, content_type="application/atom+xml")

    def _description(self, body: str) -> str:
        found = re.search(r"<QueueDescription.*?>(.*)</QueueDescription>", body, re.DOTALL)
        assert found
        return found.group(1)

    def _entry(self, name: str) -> str:
        inside = self.queues[name] + COUNTS + "<MessageCount>6</MessageCount>"
        described = f'<QueueDescription xmlns="{SERVICE_BUS}">{inside}</QueueDescription>'
        content = f'<content type="application/xml">{described}</content>'
        return f'<entry xmlns="{ATOM}"><title type="text">{name}</title>{content}</entry>'

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            "contoso-dr",
            f"127.0.0.1:{self.port}",
            "127.0.0.1",
            self.port,
            tls=False,
            credential=SasKey("Root", SECRET),
            emulator=True,
        )

    def pair(self, count: int = 3) -> Pair:
        primary = Endpoint("contoso", "contoso.invalid", "contoso.invalid", 5671, tls=True, credential=SasKey("R", "k"))
        return Pair("orders", primary, self.endpoint, backlog_queues=count)


@asynccontextmanager
async def serving(namespace: Namespace) -> AsyncIterator[Namespace]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", namespace.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    namespace.port = runner.addresses[0][1]
    try:
        yield namespace
    finally:
        await runner.cleanup()


def names(report: EntityReport, *outcomes: Outcome) -> list[str]:
    return [item.name.rsplit("/", 1)[1] for item in report.of(*outcomes)]


async def test_every_queue_is_created_with_the_golden_description_to_the_byte() -> None:
    async with serving(Namespace()) as namespace:
        report = await provision(namespace.pair(12))
        assert names(report, Outcome.CREATED) == [str(index) for index in range(12)]
        assert provision_exit_code(report) == 0
    assert len(namespace.queues) == 12
    golden = GOLDEN.read_bytes()
    assert {
        body for (method, _path), body in zip(namespace.seen, namespace.bodies, strict=True) if method == "PUT"
    } == {golden}


async def test_provisioning_again_creates_nothing() -> None:
    async with serving(Namespace()) as namespace:
        await provision(namespace.pair())
        report = await provision(namespace.pair())
        assert names(report, Outcome.EXISTING) == ["0", "1", "2"]
    assert sum(method == "PUT" for method, _path in namespace.seen) == 3


async def test_a_dry_run_changes_nothing() -> None:
    async with serving(Namespace()) as namespace:
        report = await provision(namespace.pair(), dry_run=True)
        assert names(report, Outcome.WOULD_CREATE) == ["0", "1", "2"]
    assert not namespace.queues


async def test_concurrently_created_queue_is_compared() -> None:
    async with serving(Namespace()) as namespace:
        namespace.queues["contoso/x-servicebus-transfer/1"] = "<LockDuration>PT30S</LockDuration>"
        namespace.scripted.append(("GET $Resources/queues", 200, f'<feed xmlns="{ATOM}"><title>q</title></feed>'))
        report = await provision(namespace.pair())
        assert names(report, Outcome.CREATED) == ["0", "2"]
        assert names(report, Outcome.DRIFTED) == ["1"]
        assert (provision_exit_code(report), provision_exit_code(report, strict=True)) == (0, 3)


async def test_name_taken_by_a_topic_is_a_failed_item() -> None:
    async with serving(Namespace()) as namespace:
        namespace.scripted.append(("PUT contoso/x-servicebus-transfer/1", *EXISTS))
        report = await provision(namespace.pair())
        [failed] = report.of(Outcome.FAILED)
        assert "not by a queue" in failed.reason
        assert names(report, Outcome.CREATED) == ["0", "2"]
        assert provision_exit_code(report) == 3


async def test_transient_error_is_retried_after_the_requested_time() -> None:
    waited: list[float] = []
    events: list[object] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async with serving(Namespace()) as namespace:
        namespace.scripted += [
            ("PUT contoso/x-servicebus-transfer/0", *BUSY),
            ("PUT contoso/x-servicebus-transfer/0", 500, ""),
        ]
        report = await provision(namespace.pair(1), on_event=events.append, sleep=sleep)
        assert names(report, Outcome.CREATED) == ["0"]
    [throttled, failed] = waited
    assert 10.0 <= throttled <= 15.0
    assert 4.0 <= failed <= 6.0
    assert [type(event) for event in events[1:]] == [Retrying, Retrying, QueueProvisioned]


async def test_permanent_failure_is_reported_and_others_are_created() -> None:
    async with serving(Namespace()) as namespace:
        namespace.scripted += [("PUT contoso/x-servicebus-transfer/1", 503, "")] * 3
        namespace.scripted += [
            (
                "PUT contoso/x-servicebus-transfer/2",
                400,
                "<Error><Detail>SubCode=40000. Bad size. TrackingId:1</Detail></Error>",
            )
        ]
        report = await provision(namespace.pair(4), sleep=no_wait)
        assert names(report, Outcome.CREATED) == ["0", "3"]
        busy, refused = report.of(Outcome.FAILED)
        assert (busy.exit_code, refused.exit_code) == (6, 3)
        assert refused.reason.endswith("refused it (400): SubCode=40000. Bad size.")


@pytest.mark.parametrize(
    ("status", "body", "raised"),
    [
        (401, "", errors.NotAuthenticated),
        (401, "<Error><Detail>Manage,EntityRead claims required</Detail></Error>", errors.NotAuthorized),
        (403, "", errors.NotAuthorized),
        (403, "<Error><Detail>SubCode=40300. Limit reached</Detail></Error>", errors.ServiceRefused),
        (404, "", errors.EntityMissing),
        (400, "<Error><Detail>SubCode=40000. No.</Detail></Error>", errors.ServiceRefused),
        (409, "<Error><Detail>SubCode=40901. In progress.</Detail></Error>", errors.Unavailable),
        (429, BUSY[1], errors.Throttled),
        (500, "", errors.Unavailable),
        (503, "<Error><Detail>SubCode=50009. Busy</Detail></Error>", errors.Throttled),
        (504, "", errors.TimedOut),
        (200, "<html>", errors.Unreachable),
    ],
)
async def test_each_refusal_maps_to_its_error(status: int, body: str, raised: type[errors.SbpairError]) -> None:
    async with serving(Namespace()) as namespace:
        namespace.scripted.append(("GET $Resources/queues", status, body))
        async with open_atom(namespace.endpoint) as queues:
            with pytest.raises(raised) as caught:
                await queues.list_under("contoso/")
        assert type(caught.value) is raised
        assert caught.value.hint
        assert SECRET not in caught.value.message + caught.value.hint


async def test_unauthorized_stops_the_other_creations_at_once() -> None:
    async with serving(Namespace()) as namespace:
        namespace.scripted += [("PUT", 401, "")] * 50
        report = await provision(namespace.pair(50), sleep=no_wait)
        assert provision_exit_code(report) == 5
        assert len(report.of(Outcome.FAILED)) <= CONCURRENCY
        assert len(report.of(Outcome.FAILED, Outcome.NOT_TRIED)) == 50
    assert not namespace.queues
    assert sum(method == "PUT" for method, _path in namespace.seen) <= CONCURRENCY


async def test_silent_namespace_times_out() -> None:
    async with serving(Namespace(silent=True)) as namespace, open_atom(namespace.endpoint, call_seconds=0.05) as queues:
        with pytest.raises(errors.Silent, match=r"no answer within 0\.05 s"):
            await queues.get("orders")


async def test_closed_port_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        namespace = Namespace(port=unused.getsockname()[1])
        with pytest.raises(errors.Unreachable, match="cannot be reached"):
            await provision(namespace.pair(), sleep=no_wait)


async def test_a_missing_queue_is_missing() -> None:
    async with serving(Namespace()) as namespace, open_atom(namespace.endpoint) as queues:
        with pytest.raises(errors.EntityMissing):
            await queues.get("orders")


async def test_created_queue_reads_back_equal_and_a_second_creation_is_refused() -> None:
    async with serving(Namespace()) as namespace:
        spec = replace(QueueSpec("orders"), requires_session=True, max_size_in_megabytes=2048, lock_duration="PT30S")
        async with open_atom(namespace.endpoint) as queues:
            assert await queues.create(spec)
            assert (await queues.get("orders")).spec == spec
            assert not await queues.create(spec)


async def test_one_client_serves_many_coroutines_and_reads_every_page() -> None:
    async with serving(Namespace(page=7)) as namespace:
        async with open_atom(namespace.endpoint) as queues, asyncio.TaskGroup() as group:
            for index in range(40):
                group.create_task(queues.create(backlog.queue_spec("contoso", index)))
        async with open_atom(namespace.endpoint) as queues:
            found = await queues.list_under("CONTOSO/x-servicebus-transfer/", counts=True)
        assert {state.spec.path for state in found} == set(namespace.queues)
        assert found[0].counts == Counts(active=3, dead_letter=2, scheduled=1, total=6)


async def test_token_audience_is_the_authority_on_every_route() -> None:
    async with serving(Namespace()) as namespace:
        elsewhere = replace(namespace.endpoint, authority="contoso-dr.servicebus.windows.net")
        async with open_atom(elsewhere) as queues:
            await queues.list_under("contoso/")
        [headers] = namespace.headers
        assert headers["Host"] == "contoso-dr.servicebus.windows.net"
        assert "sr=https%3A%2F%2Fcontoso-dr.servicebus.windows.net&" in headers["Authorization"]


async def test_a_ready_made_signature_is_sent_as_it_is() -> None:
    async with serving(Namespace()) as namespace:
        signed = replace(namespace.endpoint, credential=SasToken("SharedAccessSignature sr=x&sig=y&se=1&skn=z"))
        async with open_atom(signed) as queues:
            await queues.list_under("contoso/")
        assert namespace.headers[0]["Authorization"] == "SharedAccessSignature sr=x&sig=y&se=1&skn=z"


async def test_audit_reports_missing_drifted_extra_and_changes_nothing() -> None:
    async with serving(Namespace()) as namespace:
        await provision(namespace.pair(2))
        namespace.queues["contoso/x-servicebus-transfer/1"] = "<LockDuration>PT30S</LockDuration>"
        namespace.queues["contoso/x-servicebus-transfer/7"] = ""
        namespace.queues["contoso/x-servicebus-transfer/old"] = ""
        namespace.queues["orders"] = ""
        before = dict(namespace.queues)
        report = await audit(namespace.pair(3), sample_seconds=0, sleep=no_wait)
        assert names(report, Outcome.OK) == ["0"]
        assert names(report, Outcome.DRIFTED) == ["1"]
        assert names(report, Outcome.MISSING) == ["2"]
        assert names(report, Outcome.EXTRA) == ["7", "old"]
        assert audit_exit_code(report) == 3
        [right] = report.of(Outcome.OK)
        assert right.detail
        assert right.detail.counts == Counts(3, 2, 1, 6)
        assert namespace.queues == before


async def test_an_audit_of_a_namespace_as_it_should_be_exits_0() -> None:
    async with serving(Namespace()) as namespace:
        await provision(namespace.pair(2))
        assert audit_exit_code(await audit(namespace.pair(2), sample_seconds=0, sleep=no_wait)) == 0
