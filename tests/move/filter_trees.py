"""Random filters as trees, their text, and a naive evaluator of trees: a second opinion on filters."""

import math
import operator
import re
from typing import Any

from hypothesis import strategies as st

Tree = tuple[Any, ...]
COMPARE = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
SYSTEM = ("sys.Label", "sys.MessageId", "sys.To", "sys.CorrelationId")
USER = ("a", "B", "user.c", "[d]", "missing")

numbers = st.sampled_from([0, 1, 2, 3, 7, 0.5, 2.0])
texts = st.sampled_from(["", "a", "ab", "A", "it's", "50%", "b_c", "a%"])
constants = st.one_of(numbers, texts, st.booleans(), st.none()).map(lambda value: ("constant", value))
ordered = st.one_of(numbers, texts, st.none()).map(lambda value: ("constant", value))
users = st.sampled_from(USER).map(lambda name: ("user", name))
systems = st.sampled_from(SYSTEM).map(lambda name: ("system", name))
sums = st.recursive(
    st.one_of(users, numbers.map(lambda value: ("constant", value))),
    lambda inner: st.one_of(
        st.tuples(st.just("calculate"), st.sampled_from("+-*/%"), users, inner),
        st.tuples(st.just("negative"), users),
    ),
    max_leaves=4,
)
conditions = st.recursive(
    st.one_of(
        st.tuples(st.just("compare"), st.sampled_from(list(COMPARE)), users, st.one_of(ordered, sums, users)),
        st.tuples(st.just("compare"), st.sampled_from(["=", "<>"]), users, constants),
        st.tuples(
            st.just("compare"), st.sampled_from(list(COMPARE)), systems, texts.map(lambda text: ("constant", text))
        ),
        st.tuples(st.just("null"), st.booleans(), st.one_of(users, systems)),
        st.tuples(st.just("exists"), st.one_of(users, systems)),
        st.tuples(st.just("in"), st.booleans(), users, st.lists(st.one_of(constants, users), min_size=1, max_size=3)),
        st.tuples(
            st.just("like"),
            st.booleans(),
            st.one_of(users, systems),
            st.text("ab%_'!", max_size=4),
            st.sampled_from(["", "!"]),
        ),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=5,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(numbers, texts, st.booleans(), st.none())
        for name in (*(re.sub(r"user\.|[\[\]]", "", name).lower() for name in USER[:-1]),)
    }
    | dict.fromkeys(SYSTEM[:1] + SYSTEM[2:], st.sampled_from(["a", "ab", "50%"])),
)


class Failed(Exception):
    """The filter has no value for the message."""


def text_of(tree: Tree) -> str:  # noqa: C901  # a case for each kind of part
    """Return the filter's text, with parentheses around each part."""
    match tree:
        case ("constant", None):
            return "NULL"
        case ("constant", bool(value)):
            return str(value).upper()
        case ("constant", str(value)):
            return "'" + value.replace("'", "''") + "'"
        case ("constant", value) | ("user" | "system", value):
            return str(value)
        case ("negative", inner):
            return f"-{text_of(inner)}"
        case ("calculate", sign, left, right):
            return f"({text_of(left)} {sign} {text_of(right)})"
        case ("compare", sign, left, right):
            return f"{text_of(left)} {sign} {text_of(right)}"
        case ("null", negated, subject):
            return f"{text_of(subject)} IS {'NOT ' if negated else ''}NULL"
        case ("exists", subject):
            return f"EXISTS ({text_of(subject)})"
        case ("in", negated, subject, choices):
            return f"{text_of(subject)} {'NOT ' if negated else ''}IN ({', '.join(map(text_of, choices))})"
        case ("like", negated, subject, pattern, escape):
            ending = f" ESCAPE '{escape}'" if escape else ""
            quoted = text_of(("constant", pattern))
            return f"{text_of(subject)} {'NOT ' if negated else ''}LIKE {quoted}{ending}"
        case ("not", inner):
            return f"NOT ({text_of(inner)})"
        case (word, left, right):
            return f"({text_of(left)}) {word.upper()} ({text_of(right)})"
    raise AssertionError(tree)


def chosen(tree: Tree, message: dict[str, Any]) -> bool:
    try:
        return truth(tree, message) is True
    except Failed:
        return False


def truth(tree: Tree, message: dict[str, Any]) -> bool | None:  # noqa: C901  # a case for each kind of condition
    match tree:
        case ("not", inner):
            one = truth(inner, message)
            return None if one is None else not one
        case ("and" | "or" as word, left, right):
            decisive = word == "or"
            one = truth(left, message)
            if one is decisive:
                return one
            other = truth(right, message)
            return other if other is decisive or one is not None else None
        case ("null", negated, subject):
            return (value(subject, message) is None) is not negated
        case ("exists", ("user", name)):
            return key_of(name) in message
        case ("exists", subject):
            return value(subject, message) is not None
        case ("compare", sign, left, right):
            return compared(sign, value(left, message), value(right, message))
        case ("in", negated, subject, choices):
            found = value(subject, message)
            if found is None:
                return None
            answers = []
            for choice in choices:
                answers.append(compared("=", found, value(choice, message)))
                if answers[-1]:
                    return not negated
            return None if None in answers else negated
        case ("like", negated, subject, pattern, escape):
            found = value(subject, message)
            if found is None:
                return None
            if not isinstance(found, str):
                raise Failed
            return is_like(found, pattern, escape) is not negated
    raise AssertionError(tree)


def compared(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    kinds = {"number" if type(each) in (int, float) else type(each).__name__ for each in (left, right)}
    if len(kinds) > 1 or (kinds == {"bool"} and sign not in ("=", "<>")):
        raise Failed
    return bool(COMPARE[sign](left, right))


def is_like(text: str, pattern: str, escape: str) -> bool:
    pieces: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for each in characters:
        literal = each == escape
        try:
            pieces.append((next(characters) if literal else each, literal or each not in "%_"))
        except StopIteration:
            raise Failed from None
    return matches(text, pieces)


def matches(text: str, pieces: list[tuple[str, bool]]) -> bool:
    if not pieces:
        return not text
    (one, literal), *rest = pieces
    if not literal and one == "%":
        return any(matches(text[start:], rest) for start in range(len(text) + 1))
    return bool(text) and (not literal or text[0] == one) and matches(text[1:], rest)


def value(tree: Tree, message: dict[str, Any]) -> Any:
    match tree:
        case ("constant", found):
            return found
        case ("user", name):
            return message.get(key_of(name))
        case ("system", name):
            return message.get(name)
        case ("negative", inner):
            found = value(inner, message)
            if found is not None and type(found) not in (int, float):
                raise Failed
            return None if found is None else -found
        case ("calculate", sign, left, right):
            return calculated(sign, value(left, message), value(right, message))
    raise AssertionError(tree)


def calculated(sign: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    kinds = {type(left), type(right)}
    if sign == "+" and str in kinds and bool not in kinds:
        return f"{left}{right}"
    if not kinds <= {int, float}:
        raise Failed
    if kinds == {int}:
        if sign in "/%" and right == 0:
            raise Failed
        whole = {"/": lambda: math.trunc(left / right), "%": lambda: int(math.fmod(left, right))}
        return whole[sign]() if sign in whole else SIMPLE[sign](left, right)
    if sign in "/%" and right == 0:
        return math.nan if sign == "%" or left == 0 or left != left else math.copysign(math.inf, left)
    return math.fmod(left, right) if sign == "%" else SIMPLE[sign](left, right)


SIMPLE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def key_of(name: str) -> str:
    return re.sub(r"user\.|[\[\]]", "", name).lower()
