"""The operators of rules: comparison, arithmetic and LIKE. Pure.

A mismatch of types raises EvaluationFailed. The functions whose names end with `leniently` first convert text, or a
number of seconds, beside a time or a duration.
"""

from __future__ import annotations

import math
import operator
import re
import uuid
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Final

from sbpair.amqp.types import Value
from sbpair.rules.values import (
    EQUALITY,
    NUMBER,
    SPAN,
    TEXT,
    TIME,
    EvaluationFailed,
    Instant,
    Ticks,
    TimeSpanValue,
    Truth,
    checked_int64,
    kind_of,
    seconds,
    to_instant,
    to_span,
    type_name,
)

_ORDERED: Final = frozenset({NUMBER, TEXT, SPAN, TIME})


def _converted(kind: type, value: Value) -> Value:
    """Return a text or a number as a TimeSpanValue or an Instant; another value unchanged."""
    made: Value = None
    if isinstance(value, str):
        made = to_span(value) if kind is TimeSpanValue else to_instant(value)
    elif kind is TimeSpanValue and kind_of(value) == NUMBER:
        made = seconds(value)
    return value if made is None else made


# Comparison

COMPARE: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare(symbol: str, left: Value, right: Value) -> Truth:
    """Return unknown where one side is. Raises EvaluationFailed for two values that cannot be compared."""
    if left is None or right is None:
        return None
    kind = kind_of(left)
    if not kind or kind != kind_of(right) or (symbol not in EQUALITY and kind not in _ORDERED):
        raise cannot_apply(symbol, left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        left, right = _exact(left), _exact(right)
    try:
        return bool(COMPARE[symbol](left, right))
    except ArithmeticError:
        # A decimal and a double that is not a number.
        return False


def compare_leniently(symbol: str, left: Value, right: Value) -> Truth:
    for kind in (TimeSpanValue, Instant):
        if type(left) is not type(right) and kind in (type(left), type(right)):
            left, right = _converted(kind, left), _converted(kind, right)
            break
    return compare(symbol, left, right)


def equal(left: Value, right: Value) -> bool:
    """Compare for a correlation filter: of one kind, and the same value. Never fails."""
    kind = kind_of(left)
    return bool(kind) and kind == kind_of(right) and bool(left == right)


def cannot_apply(symbol: str, left: Value, right: Value) -> EvaluationFailed:
    return EvaluationFailed(
        f"Operator '{symbol}' cannot be applied to operands of type '{type_name(left)}' and '{type_name(right)}'."
    )


# Arithmetic


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """Apply `+ - * / %`: text is joined, integers divide to integers, and durations are added to times."""
    if left is None or right is None:
        return None
    if isinstance(left, Ticks) or isinstance(right, Ticks):
        return _with_ticks(symbol, left, right)
    if symbol == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _text(left) + _text(right)
    if kind_of(left) != NUMBER or kind_of(right) != NUMBER:
        raise cannot_apply(symbol, left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _with_decimals(symbol, Decimal(_exact(left)), Decimal(_exact(right)))
    if isinstance(left, int) and isinstance(right, int):
        return _with_integers(symbol, left, right)
    return _with_doubles(symbol, float(left), float(right))


def calculate_leniently(symbol: str, left: Value, right: Value) -> Value:
    """Apply an operator. A number or a text beside a time or a duration is a duration, which has multiples."""
    if not isinstance(left, Ticks) or right is None:
        return calculate(symbol, left, right)
    if type(left) is TimeSpanValue and symbol in ("*", "/") and kind_of(right) == NUMBER:
        try:
            return TimeSpanValue(checked_int64(int(_OPERATORS[symbol](int(left), float(right)))))
        except (ArithmeticError, ValueError):
            raise EvaluationFailed(f"a duration {symbol} {right} has no result") from None
    if symbol in ("+", "-") and not isinstance(right, Ticks):
        right = _converted(TimeSpanValue, right)
    return calculate(symbol, left, right)


def signed(sign: str, value: Value) -> Value:
    """Apply a sign: `+` or `-`."""
    if value is None:
        return None
    if not isinstance(value, TimeSpanValue) and kind_of(value) != NUMBER:
        raise EvaluationFailed(f"Operator '{sign}' cannot be applied to operand of type '{type_name(value)}'.")
    if sign == "+":
        return value
    return type(value)(checked_int64(-value)) if isinstance(value, int) else -value


def _text(value: Value) -> str:
    if isinstance(value, (int, float, Decimal, uuid.UUID, str)) and not isinstance(value, bool):
        return str(value)
    raise EvaluationFailed(f"A value of type '{type_name(value)}' cannot be joined to text.")


def _with_ticks(symbol: str, left: Value, right: Value) -> Ticks:
    span_right = isinstance(right, TimeSpanValue)
    if symbol in ("+", "-") and isinstance(left, Ticks) and span_right:
        made: type[Ticks] = type(left)
    elif symbol == "-" and isinstance(left, Instant) and isinstance(right, Instant):
        made = TimeSpanValue
    else:
        raise cannot_apply(symbol, left, right)
    return made(checked_int64(int(left) + int(right) if symbol == "+" else int(left) - int(right)))


def _with_integers(symbol: str, one: int, other: int) -> int:
    if symbol not in ("/", "%"):
        return checked_int64(_OPERATORS[symbol](one, other))
    if other == 0:
        raise EvaluationFailed("Attempted to divide by zero.")
    quotient, remainder = divmod(abs(one), abs(other))
    if symbol == "%":
        return remainder if one >= 0 else -remainder
    return checked_int64(quotient if (one < 0) == (other < 0) else -quotient)


def _with_doubles(symbol: str, one: float, other: float) -> float:
    try:
        result: float = math.fmod(one, other) if symbol == "%" else _OPERATORS[symbol](one, other)
    except ZeroDivisionError:
        return one * math.inf if one == one and one != 0 else math.nan
    except ValueError:
        return math.nan
    return result


_OPERATORS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod,
}  # fmt: skip

# Wide enough for every product of two; the service's own have 28 digits.
_EXACT: Final = Context(prec=80)


def _exact(number: Value) -> Value:
    """Return a double as it is written: 0.1 is a tenth. Other numbers are exact."""
    return Decimal(repr(number)) if type(number) is float else number


def _with_decimals(symbol: str, one: Decimal, other: Decimal) -> Decimal:
    try:
        with localcontext(_EXACT):
            result: Decimal = _OPERATORS[symbol](one, other)
    except ArithmeticError as error:
        raise EvaluationFailed("Attempted to divide by zero, or the result is no decimal.") from error
    return result


# LIKE


@lru_cache(256)
def like_pattern(text: str, escape: str = "") -> re.Pattern[str]:
    """Return the expression for a pattern: `%` is any text, `_` any character. Time is bounded by text x pattern."""
    pieces, characters = [""], iter(text)
    for each in characters:
        if escape and each == escape:
            escaped = next(characters, "")
            if not escaped:
                raise EvaluationFailed("A pattern ends with its escape character.")
            pieces[-1] += re.escape(escaped)
        elif each == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if each == "_" else re.escape(each)
    first, *others = pieces
    # The first place of each piece leaves most text for the next ones: no piece is tried at a second place.
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    return re.compile(first + middle + (f".*{others[-1]}" if others else ""), re.DOTALL)
