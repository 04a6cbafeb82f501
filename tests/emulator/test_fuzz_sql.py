"""Broken filters and actions: each text is refused with the service's error, or can be evaluated.

Texts are pieces of valid ones, omitted, doubled, mixed and nested. Evaluation returns or fails in bounded time.
`-m slow` selects the long runs.
"""

import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair.amqp.types import Int, Map, Timestamp
from sbpair.emulator.entities.rules import SqlAction, StoredView, SubscriptionRule, select_copies
from sbpair.rules.filters import SqlRuleFilter, TrueRuleFilter
from sbpair.rules.values import RuleInvalid
from tests.emulator.test_rules import HELD, SOUND_ACTIONS, TRUE, a_message, each

Draw = Any
MAX_SECONDS = 5.0

FILTERS = each(TRUE)
ACTIONS = [text for text, *_ in SOUND_ACTIONS]
TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|[\w.@]+|\s+|[<>!=]=|.")
STRANGE = [
    "", "'", '"', "[", ";", "\x00", "\ud7ff", "--", "/*", "9" * 400, "1e999999", "-" * 300, "@", "sys.", "0x", "%" * 60,
]  # fmt: skip
ODD = a_message(
    Map([*HELD.pairs, ("far", Timestamp(2**62)), ("long", "a" * 500), ("strange", float("nan")), ("list", [Int(1)])])
)


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


def survive(text: str, *, action: bool) -> None:
    before = time.thread_time()
    try:
        made = SqlAction(text) if action else None
        rule = SubscriptionRule("r", TrueRuleFilter() if action else SqlRuleFilter(text), made)
    except RuleInvalid:
        return
    finally:
        assert time.thread_time() - before < MAX_SECONDS
    selected = select_copies([rule], StoredView(ODD))
    assert time.thread_time() - before < MAX_SECONDS
    assert selected.failure is None or selected.failure.description


@pytest.mark.parametrize("examples", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", [False, True], ids=["filter", "action"])
def test_broken_texts_are_refused_or_evaluated(examples: int, action: bool) -> None:
    @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples)
    @given(broken_texts(ACTIONS if action else FILTERS))
    def run(text: str) -> None:
        survive(text, action=action)

    run()
