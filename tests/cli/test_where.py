"""`--where` of the movers and of peek: what is chosen, what is printed, and wrong filters."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Int
from sbpair.backlog import Aliases, write_aliases
from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment, untimed
from tests.kit.stranded import put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbpair.emulator.entities.queue import QueueEntity

QUEUE = "contoso/x-servicebus-transfer/0"
NUMBERS = range(1, 7)
EVEN = "number % 2 = 0"
WAYS = {
    "syphon": ("syphon", "--once"),
    "move": ("move", "orders", "repair", "--once"),
    "redrive": ("redrive", "orders", "--once"),
}
SOURCES = {"syphon": "the backlog", "move": "primary:orders", "redrive": "primary:orders/$deadletterqueue"}


def numbered(number: int, to: str | None) -> bytes:
    own = {"number": Int(number), **(write_aliases(Aliases(to)) if to else {})}
    return Sections(
        properties=Properties(message_id=f"m{number}", subject=f"s{number}").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, own),
        body=data_body(b"body"),
    ).join()


class World:
    """A pair whose backlog queue, queue `orders` and dead letters of it have six messages each."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        self.do, self._here = thread.do, here
        primary, secondary = thread.emulator.namespaces.values()
        self.backlog: QueueEntity = self.do(lambda: secondary.create_queue(QUEUE))
        self.orders: QueueEntity = self.do(lambda: primary.create_queue("orders"))
        self.do(lambda: primary.create_queue("repair"))
        self.environ = environment(thread.emulator, NO_COLOR="1")
        self.do(self._fill)

    def _fill(self) -> None:
        for number in NUMBERS:
            put(self.orders, numbered(number, None))
            (locked,) = self.orders.messages.receive(1)
            self.orders.messages.dead_letter(locked.lock_token, "Poison" if number < 4 else "Late", None)
        for number in NUMBERS:
            put(self.backlog, numbered(number, "orders"))
            put(self.orders, numbered(number, None))

    def run(self, *words: str) -> tuple[int, str, list[str]]:
        code, out, err = self._here(*words, **self.environ)
        return code, out, untimed(err).splitlines()

    def document(self, *words: str, code: int = 0) -> dict[str, Any]:
        done, out, err = self.run(*words, "-q", "-o", "json")
        assert done == code, err
        found: dict[str, Any] = json.loads(out)
        return found

    def left(self, way: str) -> dict[str, int]:
        """Return the delivery counts in a source, by message id."""
        queue = {"syphon": self.backlog.messages, "move": self.orders.messages, "redrive": self.orders.dead_letters}
        peeked = self.do(lambda: queue[way].peek(0, 100))
        return {each.sections.read_properties().message_id: each.delivery_count for each in peeked}

    def unlocked(self, way: str) -> int:
        queue = {"syphon": self.backlog.messages, "move": self.orders.messages, "redrive": self.orders.dead_letters}
        return len(self.do(lambda: queue[way].receive(100)))


@pytest.fixture
def world(here: Here, impatient: None) -> Iterator[World]:  # noqa: ARG001
    with EmulatorThread() as thread:
        yield World(thread, here)


def dry(way: str) -> list[str]:
    return [*(word for word in WAYS[way] if word != "--once"), "--dry-run"]


@pytest.mark.parametrize("way", WAYS)
def test_only_matching_messages_are_moved_and_the_others_stay(world: World, way: str) -> None:
    before = world.left(way)
    forecast = world.document(*dry(way), "--where", EVEN)
    counts = {"text": EVEN, "chosen": 3, "skipped": 3, "failed": 0, "first_failure": "", "remarks": []}
    assert (forecast["messages"], forecast["sent"], forecast["skipped"], forecast["where"]) == (6, 3, 3, counts)
    assert world.left(way) == before
    code, out, err = world.run(*WAYS[way], "--where", EVEN)
    assert (code, f"matched 3 of 6 messages: {EVEN}" in out.splitlines()) == (0, True)
    assert f"3 messages do not match and stay in {SOURCES[way]}" in err
    stay = world.left(way)
    # A syphon of orders sends the others there, too.
    assert {name: count for name, count in stay.items() if name in ("m1", "m3", "m5")} == {
        name: before[name] for name in ("m1", "m3", "m5")
    }
    assert (len(stay), world.unlocked(way)) == (3, 3)
    (run,) = world.document("runs", "list")["runs"]
    (shown,) = world.document("runs", "show", run["id"])["runs"]
    assert (shown["outcome"], shown["exit_code"], shown["receipt"]["where"]) == ("done", 0, counts)
    assert f"matched 3 of 6 messages: {EVEN}" in world.run("runs", "show", run["id"])[1].splitlines()


def test_receipt_without_filter_says_so(world: World) -> None:
    assert world.document("syphon", "--dry-run")["where"] is None
    assert world.document("syphon", "--once")["where"] is None


def test_messages_for_which_it_fails_stay_and_are_counted(world: World) -> None:
    failing = "number > 'x' OR number = 2"
    code, _out, err = world.run("move", "orders", "repair", "--where", failing)
    why = "message 7: Operator '>' cannot be applied to operands of type 'Int64' and 'String'."
    assert (code, err[-2:]) == (
        0,
        [
            f"warning: the filter could not be calculated for 6 messages, which did not match; {why}",
            "6 messages do not match and stay in primary:orders",
        ],
    )
    found = world.document("move", "orders", "repair", "--where", failing)
    assert (found["skipped"], found["where"]["failed"], found["where"]["first_failure"]) == (6, 6, why)


def test_doubts_about_a_filter_are_printed_before_the_move(world: World) -> None:
    code, _out, err = world.run("move", "orders", "repair", "--where", "Label = 'a'")
    remark = "Label is an application property here; the message's own is sys.Label"
    assert (code, err[0]) == (0, f"warning: --where: {remark}")
    assert world.document("peek", "orders", "--where", "Label = 'a'")["messages"] == []


@pytest.mark.parametrize("text", ["sys.Subject = s1", "number IN (1000, s1)", "NOT (colour <> s1)"])
def test_name_in_place_of_text_is_doubted_if_nothing_matches(world: World, text: str) -> None:
    doubt = "warning: no message matched, and s1 is an application property; text has single quotes: 's1'"
    for words in (("peek", "orders"), dry("move"), WAYS["move"], ("redrive", "orders", "--by-reason")):
        assert doubt in world.run(*words, "--where", text)[2], words


@pytest.mark.parametrize("text", ["number = number", "number < s1 OR number = 1", "number = user.s1", "number = [s1]"])
def test_names_are_not_doubted_otherwise(world: World, text: str) -> None:
    assert not any("no message matched" in line for line in world.run("peek", "orders", "--where", text)[2])


def test_run_ends_where_too_many_do_not_match(world: World) -> None:
    words = ("--where", EVEN, "--max-skipped", "2")
    code, out, err = world.run("move", "orders", "repair", *words)
    assert (code, "to continue: sbpair move orders repair --once --where 'number % 2 = 0'\n" in out) == (3, True)
    assert any("2 messages are skipped and kept locked, which is the limit; choose more" in line for line in err), err
    assert set(world.left("move").values()) == {0}
    forecast = world.document(*dry("syphon"), *words)
    assert forecast["notes"] == ["a run ends once 2 messages are skipped: raise --max-skipped to 3"]


def test_printed_command_quotes_a_filter_with_double_quotes(world: World) -> None:
    text = "sys.MessageId = 'm1'"
    _code, out, _err = world.run("move", "orders", "repair", "--where", text, "--max-skipped", "2")
    assert f'--once --where "{text}"\n' in out
    costly = "sys.MessageId = '$(m1)'"
    _code, out, _err = world.run("move", "orders", "repair", "--where", costly, "--max-skipped", "2")
    (line,) = (each for each in out.splitlines() if each.startswith("to continue: "))
    assert shlex.split(line)[-1] == costly


def test_filter_and_number_of_messages_go_together(world: World) -> None:
    found = world.document("move", "orders", "repair", "--where", EVEN, "--max", "2")
    assert (found["sent"], found["received"]) == (2, 2 + found["skipped"] + found["released"])
    assert {*world.left("move")} >= {"m1", "m3", "m5", "m6"}


def test_dead_letters_are_chosen_by_reason_and_filter(world: World) -> None:
    words = ("redrive", "orders", "--reason", "late", "--where", "number > 4")
    groups = world.document(*words, "--by-reason")["groups"]
    assert [(each["reason"], each["messages"]) for each in groups] == [("Late", 2)]
    assert world.run(*words, "--by-reason")[2][-1].startswith(
        "2 dead letters match; send them back with sbpair redrive"
    )
    assert world.run("redrive", "orders", "--where", "FALSE = TRUE", "--by-reason")[2] == ["no dead letter matches"]
    text = "reason IN ('late') AND (number > 4)"
    assert world.document(*words, "--dry-run")["where"]["text"] == text
    assert world.document(*words)["where"]["text"] == text
    assert [*world.left("redrive")] == ["m1", "m2", "m3", "m4"]


def test_peek_goes_on_until_enough_match(world: World) -> None:
    found = world.document("peek", "orders", "--where", "number >= 3", "--max", "2")
    ids = [each["message_id"] for each in found["messages"]]
    assert (ids, found["complete"], found["total"]) == (["m3", "m4"], False, None)
    assert world.run("peek", "orders", "--where", "number >= 3", "--max", "2")[2] == [
        "showed the first 2 that match; there may be more"
    ]
    assert world.run("peek", "orders", "--where", "number > 4")[2] == ["showed all 2 messages that match"]
    assert world.run("peek", "orders", "--where", "number > 9")[2] == ["no messages that match"]
    assert world.unlocked("move") == 6


def test_redrive_of_the_dead_letters_repeats_the_filter(world: World) -> None:
    put_missing = numbered(9, "missing")
    world.do(lambda: put(world.backlog, put_missing))
    code, out, _err = world.run("syphon", "--once", "--where", "path = 'missing'")
    assert (code, out.splitlines()[-1]) == (
        3,
        "to send the dead letters: sbpair redrive --backlog --where \"path = 'missing'\"",
    )


WRONG = {
    "": "expected a condition, got an empty text (column 1)",
    "   ": "expected a condition, got an empty text (column 1)",
    "number": "expected a condition, got number (column 1)",
    "number = ": "expected a value or a property, got the end (column 9)",
    "number == 1": "expected a value or a property, got '=' (column 9)",
    "number = 1 AND": "expected a value or a property, got the end (column 15)",
    "number = 'x": "text that begins here has no closing ' (column 10)",
    "sys.Lable = 'x'": "there is no system property sys.Lable (column 5)",
    "sys.MessageId > 5": "cannot compare text with a number (column 17)",
    "other.number = 1": "expected sys. or user. before a property, got other. (column 1)",
    "age < 'soon'": "expected a duration, got 'soon' (column 7)",
    "enqueued > 'soon'": "expected a time, got 'soon' (column 12)",
    "number && 1": "'&' does not belong in a filter (column 8)",
    "number = @n": "'@' does not belong in a filter (column 10)",
    "(number = 1": "expected ')', got the end (column 12)",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistake_in_a_filter_is_shown_under_its_column(world: World, text: str) -> None:
    for words in (*WAYS.values(), dry("syphon"), ("redrive", "orders", "--by-reason"), ("peek", "orders")):
        code, out, err = world.run(*words, "--where", text)
        assert (code, out, err[0]) == (2, "", f"error: --where: {WRONG[text]}"), words
        column = int(WRONG[text].rsplit(" ", 1)[1].rstrip(")"))
        assert (err[2].index("^"), err[3].startswith("hint: ")) == (column + 1, True)
        assert err[1].strip() == text.strip()
    assert {world.unlocked(way) for way in WAYS} == {6}


def test_unknown_system_property_names_the_nearest(world: World) -> None:
    assert world.run("peek", "orders", "--where", "sys.Lable = 'x'")[2][-1] == "hint: did you mean sys.Label?"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["syphon", "--once", "--max-skipped", "9"], "--max-skipped goes with --where only"),
        (["syphon", "--once", "--where", EVEN, "--max-skipped", "0"], "--max-skipped is 0, and must be at least 1"),
        (["move", "orders", "repair", "--max-skipped", "-1"], "--max-skipped is -1, and must be at least 1"),
        (["syphon", "--where", EVEN], "expected one of --once, --watch and --dry-run"),
        (["redrive", "orders", "--max-skipped", "x"], "Invalid value for '--max-skipped': expected a whole number"),
    ],
)
def test_wrong_options_are_refused(world: World, words: list[str], expected: str) -> None:
    code, out, err = world.run(*words)
    assert (code, out, err[0]) == (2, "", f"error: {expected}")
