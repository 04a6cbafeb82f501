"""OpenTelemetry of a run: its variables, its metrics and spans at a real collector, and exporters that fail."""

import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import APPLICATION_PROPERTIES, encode_map
from sbpair.amqp.types import Int, Symbol, Value
from sbpair.backlog import Aliases, write_aliases
from sbpair.metrics import run_metrics as telemetry_module
from sbpair.metrics.batch_spans import MAX_LINKS, _span_context
from sbpair.metrics.run_metrics import CLOSING, open_metrics, printable, wanted_exporters
from sbpair.syphon import runner
from sbpair.syphon.run_store import LiveRun
from tests.metrics.otlp_collector import Collector, attributes, collecting
from tests.metrics.test_live_figures import QUEUE
from tests.syphon.worlds import World, fill, world

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(autouse=True)
def ended_exports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no export go on beside the tests that follow."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    yield
    for thread in threading.enumerate():
        if thread.name == CLOSING:
            thread.join()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment names."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


@contextmanager
def opened() -> Iterator[LiveRun]:
    live = LiveRun()
    with open_metrics({"p": live}, {"command": "syphon --once"}, None):
        yield live


async def moved(w: World) -> runner.SyphonResult:
    """Move the backlog with telemetry."""
    with opened() as live:
        return await w.run(live=live, sample_seconds=0.01)


def with_context(to: str, **own: Value) -> dict[str, bytes]:
    """Return the application properties of a stranded message."""
    return {"application_properties": encode_map(APPLICATION_PROPERTIES, {**own, **write_aliases(Aliases(to))})}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, {}),
        ({"OTEL_SERVICE_NAME": "moves"}, {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, {"TRACES": ["otlp"], "METRICS": ["otlp"]}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, {"METRICS": ["otlp"]}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, {"TRACES": ["otlp"]}),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, {"METRICS": ["otlp"]}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}, {}),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, {"TRACES": ["console", "otlp"]}),
        ({"OTEL_METRICS_EXPORTER": "none"}, {}),
    ],
)
def test_the_environment_decides(environ: dict[str, str], wanted: dict[str, list[str]]) -> None:
    assert wanted_exporters(environ) == wanted


async def test_a_collector_gets_the_figures_of_the_receipt(collector: Collector) -> None:
    async with world(1, "orders") as w:
        w.strand(*range(30))
        w.strand(31, to="missing")
        result = await moved(w)
        found = collector.metrics
        assert found["sbpair.messages.sent"] == {QUEUE: result.receipt.sent} == {QUEUE: 30}
        assert found["sbpair.messages.dead_lettered"] == {QUEUE: 1}
        assert found["sbpair.destination.messages_sent"] == {"orders": 30}
        assert found["sbpair.sent"] == {"": result.receipt.bytes_sent}
        assert found["sbpair.queue.messages"] == {QUEUE: 0}
        assert (collector.units["sbpair.sent"], collector.units["sbpair.messages.sent"]) == ("By", "{message}")
        assert {each["service.name"] for each in collector.resources} == {"sbpair"}
        assert {each["service.instance.id"] for each in collector.resources} == {result.run}
        assert {each["sbpair.command"] for each in collector.resources} == {"syphon --once"}


async def test_a_batch_is_a_span_with_links_to_its_messages(collector: Collector) -> None:
    async with world(1, "orders") as w:
        other = f"00-{TRACE[::-1]}-{SPAN}-00"
        for number, own in enumerate(
            (
                {"traceparent": CONTEXT},
                {"Diagnostic-Id": other},
                {"traceparent": "garbage", "Diagnostic-Id": CONTEXT},
                {"traceparent": Int(7)},
                {"Diagnostic-Id": "|guid.1."},
                {},
            )
        ):
            w.strand(number, sections=with_context("orders", **own))
        assert (await moved(w)).receipt.sent == 6
        [span] = collector.spans
        assert (span.name, span.kind) == ("send orders", 3)
        assert {(link.trace_id.hex(), link.span_id.hex()) for link in span.links} == {
            (TRACE, SPAN),
            (TRACE[::-1], SPAN),
        }
        assert len(span.links) == 3
        found = attributes(span)
        assert found["messaging.batch.message_count"] == "6"
        assert found["messaging.destination.name"] == "orders"
        assert (found["messaging.system"], found["sbpair.queue"]) == ("servicebus", QUEUE)
        assert span.status.code == 0
        assert [
            each.sections.read_application_properties()["traceparent"] for each in w.destination().messages.peek(0, 1)
        ]


async def test_a_span_has_128_links_at_most(collector: Collector) -> None:
    async with world(1, "orders") as w:
        w.strand(*range(MAX_LINKS + 50), sections=with_context("orders", traceparent=CONTEXT))
        await moved(w)
        assert sum(int(attributes(span)["messaging.batch.message_count"]) for span in collector.spans) == MAX_LINKS + 50
        assert {len(span.links) <= MAX_LINKS for span in collector.spans} == {True}
        assert max(len(span.links) for span in collector.spans) == MAX_LINKS


async def test_a_send_that_fails_is_a_span_with_its_error(collector: Collector) -> None:
    async with world(1, "orders", "full") as w:
        fill(w.destination("full"))
        w.strand(1, to="full")
        result = await moved(w)
        assert result.receipt.released == 1
        assert {(span.status.code, attributes(span)["error.type"]) for span in collector.spans} == {
            (2, "QuotaExceeded")
        }


async def test_without_spans_no_destination_is_wrapped(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "moves")
    with opened() as live:
        assert live.traced is None
    assert (collector.spans, bool(collector.metrics)) == ([], True)
    assert {each["service.name"] for each in collector.resources} == {"moves"}


async def test_a_collector_that_refuses_is_one_warning(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.status = 403
    async with world(1, "orders") as w:
        w.strand(*range(20))
        assert (await moved(w)).receipt.sent == 20
    mine = [each for each in caplog.records if each.name.startswith("sbpair.") and each.levelno >= logging.WARNING]
    assert [each.getMessage()[:11] for each in mine] == ["telemetry: "]


async def test_a_collector_that_does_not_answer_delays_the_end_by_two_seconds(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert telemetry_module.CLOSE_SECONDS == 2.0
    monkeypatch.setattr(telemetry_module, "CLOSE_SECONDS", 0.1)
    collector.answers.clear()
    async with world(1, "orders") as w:
        w.strand(*range(20))
        began = time.monotonic()
        assert (await moved(w)).receipt.sent == 20
    assert time.monotonic() - began < 10  # on a busy machine
    assert "the last telemetry was not exported within 0.1 s" in caplog.text


def test_a_missing_sdk_or_exporter_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus,unheard-of")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with opened() as live:
        assert live.traced is None
    texts = [record.getMessage() for record in caplog.records]
    assert "the OpenTelemetry exporter 'http/json' for traces is not installed: pip install 'sbpair[otel]'" in texts
    assert "the OpenTelemetry exporter 'prometheus' for metrics is not installed: use --metrics-port" in texts
    assert len(texts) == 3
    caplog.clear()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with opened():
        pass
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith("OTEL_ variables ask for telemetry, and the OpenTelemetry SDK is not installed")


def test_the_console_exporter_writes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    handlers = [*logging.getLogger("opentelemetry").handlers]
    with opened():
        pass
    assert logging.getLogger("opentelemetry").handlers == handlers
    out, err = capsys.readouterr()
    assert out == ""
    assert '"sbpair.run.start_time"' in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no answer from https://a:b@host:4318/v1?key=abc", "no answer from https://***host:4318/v1?***"),
        ("url: /v1/traces?api-key=abc (Caused by x)", "url: /v1/traces?*** (Caused by x)"),
        ("nothing", "nothing"),
    ],
)
def test_secrets_of_a_url_are_masked(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.binary(max_size=80) | st.builds(lambda text: b"traceparent" + text, st.binary(max_size=80)))
def test_any_bytes_are_ignored_as_a_context(raw: bytes) -> None:
    assert _span_context(raw) is None


@given(
    st.dictionaries(
        st.sampled_from(["traceparent", "Diagnostic-Id", Symbol("traceparent"), "other"]),
        st.text(max_size=60) | st.integers(0, 9).map(Int) | st.sampled_from([CONTEXT, f"00-{'0' * 32}-{SPAN}-01"]),
    )
)
def test_only_a_valid_context_is_linked(own: Mapping[Value, Value]) -> None:
    found = _span_context(encode_map(APPLICATION_PROPERTIES, own) if own else b"")
    valid = CONTEXT in (own.get("traceparent"), own.get("Diagnostic-Id"))
    assert (found is not None) is valid or (found is not None and CONTEXT in own.values())


def test_the_series_of_all_pairs_have_the_pair_as_an_attribute(collector: Collector) -> None:
    lives = {"orders": LiveRun(), "billing": LiveRun()}
    with open_metrics(lives, {"command": "syphon --watch --all-pairs"}, None, by_pair=True):
        pass
    assert {*collector.metrics["sbpair.run.start_time"]} == {*lives}
    assert not {"sbpair.pair", "sbpair.run"} & collector.resources[0].keys()
