"""The lease of a redrive, and messages of original clients. What else it prints is in `sessions/redrive.txt`."""

import json
import re
from pathlib import Path

import pytest

from sbpair.amqp import codec
from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Header, Properties, Sections, encode_map, section
from sbpair.amqp.types import Decimal128, Map, Symbol, UInt, same
from sbpair.backlog import Aliases, queue_path, write_aliases
from sbpair.emulator.clock import SystemClock
from sbpair.emulator.entities.service_envelope import MAX_EXPIRY_MS
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Ends
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.syphon.run_request import RunRequest
from sbpair.testing import EmulatorThread
from sbpair.timespan import TICKS_PER_MS
from tests.kit.command import Here, environment
from tests.kit.moves import ids, stored
from tests.kit.pairs import BACKLOG
from tests.kit.stranded import put


@pytest.mark.usefixtures("impatient")
def test_dead_letters_of_a_backlog_have_one_mover(here: Here, tmp_path: Path) -> None:
    source, state = queue_path("contoso", 1), ("--state", str(tmp_path))
    with EmulatorThread() as thread:
        primary, secondary = thread.emulator.namespaces.values()
        thread.do(lambda: (primary.create_queue("orders"), secondary.create_queue(source)))
        environ = environment(thread.emulator, NO_COLOR="1")
        sides = (
            endpoint_from_connection_string(each.connection_string, name=each.name) for each in (primary, secondary)
        )
        ends = Ends(name="p", **dict(zip(("destination", "source"), sides, strict=True)))
        held = RunRequest(ends=ends, once=True, form=BACKLOG_DEAD_LETTERS).leased
        with hold_machine_leases(held[0], None, "r", held[1]):
            for words in (["redrive", "--backlog"], ["redrive", source], ["move", source, "orders", "--dead-letters"]):
                code, _, err = here(*words, *state, **environ)
                assert code == 4
                assert "moving messages of contoso/x-servicebus-transfer/*/$deadletterqueue" in err
            assert here("syphon", "--once", *state, **environ)[0] == 0


DAY_MS, HOUR_MS = 86_400_000, 3_600_000
PLAIN = {"message_id": "m1", "subject": "s", "correlation_id": "c", "reply_to": "r", "content_type": Symbol("t")}
OWN = {"number": UInt(7), "price": Decimal128(bytes.fromhex("0c380000000000000000000000bc614e"))}
BODY = section(VALUE, codec.encode("the body"))


class PastClock(SystemClock):
    """The machine's clock so many ms ago, until it is advanced by as much."""

    def __init__(self, ms: int) -> None:
        super().__init__()
        self._base_ns -= ms * 1_000_000
        self.advanced_ms -= ms


def of_an_original_client(now_ms: int) -> bytes:
    """Encode a message of a session with an hour to live as an original client strands it over AMQP."""
    aliases = write_aliases(Aliases("orders", "a session", HOUR_MS * TICKS_PER_MS))
    return Sections(
        header=Header(durable=True, priority=7, ttl=1_566_804_069).encode(),
        properties=Properties(**PLAIN, creation_time=now_ms, absolute_expiry_time=MAX_EXPIRY_MS).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, {**OWN, **aliases}),
        body=BODY,
    ).join()


@pytest.mark.usefixtures("impatient")
def test_an_expired_message_of_an_original_client_comes_back_whole(here: Here, tmp_path: Path) -> None:
    clock, path = PastClock(19 * DAY_MS), queue_path("contoso", 0)
    with EmulatorThread(clock=clock) as thread:
        primary, secondary = thread.emulator.namespaces.values()
        orders = thread.do(lambda: primary.create_queue("orders"))
        stranded = thread.do(lambda: secondary.create_queue(path, BACKLOG))
        environ = environment(thread.emulator, NO_COLOR="1")

        def sbpair(*words: str) -> tuple[str, str]:
            _, out, err = here(*words, "--state", str(tmp_path), **environ)
            return out, err

        thread.do(lambda: put(stranded, of_an_original_client(clock.now_ms())))
        thread.do(lambda: thread.emulator.advance(18 * DAY_MS))
        assert "1 waiting, 0 dead-lettered" in sbpair("status")[0]
        thread.do(lambda: thread.emulator.advance(DAY_MS))
        for words in (["status"], ["audit", "--sample", "0"]):
            out, err = sbpair(*words)
            assert "0 waiting, 1 dead-lettered (1 TTLExpiredException)" in out.splitlines()
            assert f"next: sbpair redrive --backlog --dry-run --state {tmp_path}\n" in err
        note = "1 dead letter of the backlog queues would stay: forecast the way back with sbpair redrive --backlog"
        assert note in sbpair("syphon", "--dry-run")[1]
        forecast = sbpair("redrive", "--backlog", "--dry-run")[0]
        assert re.search(r"transfer/0/\$deadletterqueue  orders +1 .* 19d", forecast)
        assert "past their time to live, which starts anew (--ttl remaining would not send them): 1\n" in forecast

        before = thread.do(lambda: stored(stranded, dead=True))
        for mode, counted in (("--dry-run", {"sent": 0, "expired": 1}), ("--once", {"sent": 0, "skipped": 1})):
            out, _ = sbpair("redrive", "--backlog", "--ttl", "remaining", mode, "-o", "json")
            assert json.loads(out).items() >= counted.items()
        assert thread.do(lambda: stored(stranded, dead=True)) == before

        assert json.loads(sbpair("redrive", "--backlog", "-o", "json")[0])["sent"] == 1
        [got] = thread.do(lambda: stored(orders))
        assert thread.do(lambda: (ids(stranded), ids(stranded, dead=True))) == ([], [])
    header, properties = got.read_header(), got.read_properties()
    assert (header.durable, header.priority, header.ttl) == (True, 7, HOUR_MS)
    times = {"creation_time": properties.creation_time, "absolute_expiry_time": properties.absolute_expiry_time}
    assert times["absolute_expiry_time"] - times["creation_time"] == HOUR_MS
    assert abs(times["creation_time"] - clock.now_ms()) < HOUR_MS
    assert properties == Properties(**PLAIN, group_id="a session", **times)
    assert same(got.read_application_properties(), Map(OWN.items()))
    assert (got.body, got.delivery_annotations, got.footer) == (BODY, b"", b"")
