"""Broken filters and actions: each text is refused with the service's error, or can be evaluated.

Texts are pieces of valid ones, omitted, doubled, mixed and nested. Evaluation returns or fails in bounded time.
`-m slow` selects the long runs.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Described, Int, Long, Map, Symbol, Timestamp, ULong
from sbpair.emulator.entities.rules import (
    SqlAction,
    SqlRuleFilter,
    StoredView,
    SubscriptionRule,
    TrueRuleFilter,
    select_copies,
)
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.service_errors import ArgumentInvalid

Draw = Any
MAX_SECONDS = 5.0

FILTERS = """
    sys.Label = 'bus stop' AND user.color IN ('red', 'blue') OR NOT EXISTS(nothing)
    (n + 1) * 2 - half / 3 % 5 > -big AND color LIKE '%e_' ESCAPE '!'
    [with space] IS NOT NULL AND "color" <> 'x''y' AND n >= 1
    property('color') = 'red' OR p('n') = 5 AND newid() != id
    took > later - at AND 1e308 * 10 > 31 AND yes = TRUE AND no = FALSE
    sys.MessageId LIKE 'm%' AND n NOT IN (1, 2.5, NULL) AND raw = raw
""".strip().splitlines()
ACTIONS = """
    SET color = 'blue'; SET sys.Label = color + '!'; REMOVE n
    SET a = n + 1; SET b = a * 2; REMOVE user.color; SET [with space] = newid()
    SET sys.To = 't'; SET c = half / 0
""".strip().splitlines()
TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|[\w.@]+|\s+|[<>!=]=|.")
STRANGE = [
    "", "'", '"', "[", ";", "\x00", "\ud7ff", "--", "/*", "9" * 400, "1e999999", "-" * 300, "@", "sys.", "0x", "%" * 60,
]  # fmt: skip
HELD = Map(
    [
        ("color", "red"), ("n", Int(5)), ("big", Long(2**62)), ("unsigned", ULong(2**64 - 1)), ("half", 2.5),
        ("yes", True), ("no", False), ("nothing", None), ("raw", b"\x01"), ("at", Timestamp(1)),
        ("later", Timestamp(2**62)), ("took", Described(Symbol("com.microsoft:timespan"), Long(600_000_000))),
        ("with space", "%_" * 30), ("long", "a" * 500), ("strange", float("nan")), ("list", [Int(1)]),
    ]
)  # fmt: skip


@st.composite
def broken_texts(draw: Draw, sound: list[str]) -> str:
    tokens = TOKEN.findall(draw(st.sampled_from(sound)).strip())
    others = [token for text in [*FILTERS, *ACTIONS] for token in TOKEN.findall(text.strip())] + STRANGE
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(0, len(tokens)))
        how = draw(st.sampled_from(["drop", "twice", "other", "other", "instead", "nest", "many"]))
        length = draw(st.integers(1, 6))
        if how == "drop":
            del tokens[number : number + length]
        elif how == "twice":
            tokens[number:number] = tokens[number : number + length]
        elif how == "other":
            tokens.insert(number, draw(st.sampled_from(others)))
        elif how == "instead":
            tokens[number : number + 1] = [draw(st.sampled_from(others))]
        elif how == "nest":
            depth = draw(st.sampled_from([1, 3, 200]))
            tokens[number : number + length] = ["(" * depth, *tokens[number : number + length], ")" * depth]
        else:
            tokens[number : number + length] = tokens[number : number + length] * draw(st.integers(2, 60))
    return "".join(tokens)


def held() -> StoredMessage:
    sections = Sections(
        properties=Properties(message_id="m-1", subject="bus stop").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, HELD),
        body=data_body(b"body"),
    )
    return StoredMessage(sections, len(sections))


def survive(text: str, *, action: bool) -> None:
    before = time.monotonic()
    try:
        made = SqlAction(text) if action else None
        rule = SubscriptionRule("r", TrueRuleFilter() if action else SqlRuleFilter(text), made)
    except ArgumentInvalid:
        return
    finally:
        assert time.monotonic() - before < MAX_SECONDS
    selected = select_copies([rule], StoredView(held()))
    assert time.monotonic() - before < MAX_SECONDS
    assert selected.failure is None or selected.failure.description


@pytest.mark.parametrize("text", FILTERS + ACTIONS)
def test_the_seed_inputs_are_valid(text: str) -> None:
    assert SqlRuleFilter(text) if text in FILTERS else SqlAction(text)


@pytest.mark.parametrize("examples", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", [False, True], ids=["filter", "action"])
def test_broken_texts_are_refused_or_evaluated(examples: int, action: bool) -> None:
    @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples)
    @given(broken_texts(ACTIONS if action else FILTERS))
    def run(text: str) -> None:
        survive(text, action=action)

    run()
