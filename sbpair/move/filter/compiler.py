"""Filters compiled to functions: three-valued conditions of a message, as the service evaluates its rules. Pure.

A text is compiled from its leaves to its root while it is parsed. AND and OR stop at the operand that decides.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sbpair.amqp.types import Value
from sbpair.move.filter import filter_values as values
from sbpair.move.filter.filter_values import NUMBER, Incalculable
from sbpair.move.filter.grammar import Misplaced, parse
from sbpair.move.filter.message_fields import OWN, SYSTEM, FilteredMessage
from sbpair.move.message.decode import GenericMessage

if TYPE_CHECKING:
    from lark import Token

    from sbpair.amqp.message import Sections
    from sbpair.move.message.route import Facts

MAX_DEPTH: Final = 64
Run: TypeAlias = Callable[[FilteredMessage], Value]
EQUALITY: Final = ("=", "<>", "!=")
_CONDITION: Final = "a condition"
_SECONDS: Final = ("a duration",)
_TIMES: Final[dict[str, tuple[Callable[[str], Value], str]]] = {
    "a duration": (values.to_span, values.SPAN_HINT),
    "a time": (values.to_moment, values.TIME_HINT),
}


@dataclass(frozen=True)
class Part:
    """A compiled part of a filter, at a character of the text. `kind` is "" if it depends on the message.

    `constant` holds the value of a constant. `user` is the name, in lower case, of an application property, and
    `is_bare` is whether it may be meant as text. `doubts` matter if no message matches. `depth` is how deep it nests.
    """

    run: Run
    at: int
    kind: str = ""
    name: str = ""
    constant: tuple[Value, ...] = ()
    user: str | None = None
    is_bare: bool = False
    remarks: tuple[str, ...] = field(default=(), compare=False)
    doubts: tuple[str, ...] = field(default=(), compare=False)
    depth: int = 0


def compile_text(text: str) -> Part:
    """Compile a filter. Raises FilterInvalid."""
    part: Part = parse(text, FilterBuilder)
    return part


class FilterBuilder:
    """Compiles each rule of the grammar from its parts. Methods have the names of the rules."""

    def filter(self, parts: list[Part]) -> Part:
        return _condition(parts[0])

    # Conditions

    def either(self, parts: list[Part]) -> Part:
        return _decided_by(True, parts)

    def both(self, parts: list[Part]) -> Part:
        return _decided_by(False, parts)

    def inverted(self, parts: list[Any]) -> Part:
        test = _condition(parts[-1])
        run = test.run
        return test if len(parts) % 2 else _made([test], lambda message: _not(run(message)))

    def comparison(self, parts: list[Any]) -> Part:
        left, token, right = parts
        symbol = str(token)
        left, right = _comparable(left, right, symbol)
        made = _made([left, right], _comparison(symbol, left, right))
        return _doubted(made, left, [right]) if symbol in EQUALITY else made

    def is_null(self, parts: list[Any]) -> Part:
        subject, run, negated = _property(parts[0], "IS NULL"), parts[0].run, parts[2] is not None
        return _made([subject], lambda message: (run(message) is None) is not negated)

    def is_in(self, parts: list[Any]) -> Part:
        subject, negation, _in, *choices = parts
        compared = [_comparable(subject, choice, "=")[1] for choice in choices]
        made = _made([subject, *compared], _membership(subject, compared, negation is not None))
        return _doubted(made, subject, compared)

    def like(self, parts: list[Any]) -> Part:
        subject, negation, _like, wanted, _escape, sign = parts
        others = [wanted] if sign is None else [wanted, sign]
        for each in (subject, *others):
            _check_kind(each, "text", "LIKE compares text")
        text_of, pattern_of, negated = subject.run, wanted.run, negation is not None
        sign_of: Run = (lambda _: "") if sign is None else sign.run

        def run(message: FilteredMessage) -> bool | None:
            found = [text_of(message), pattern_of(message), sign_of(message)]
            if None in found:
                return None
            for each in found:
                if not isinstance(each, str):
                    raise Incalculable(f"LIKE compares text, not {values.kind_of(each)}")
            text, pattern, escape = found
            if sign is not None and len(escape) != 1:
                raise Incalculable("an escape character is one character")
            return (values.pattern(pattern, escape).fullmatch(text) is not None) is not negated

        if sign is not None or not wanted.constant or wanted.kind != "text":
            return _made([subject, *others], run)
        matches = values.pattern(wanted.constant[0]).fullmatch

        def run_usual(message: FilteredMessage) -> bool | None:
            # At half of the cost.
            text = text_of(message)
            return (matches(text) is not None) is not negated if type(text) is str else run(message)

        return _made([subject, *others], run_usual)

    def exists(self, parts: list[Any]) -> Part:
        subject = _property(parts[-1], "EXISTS")
        name, read = subject.user, subject.run
        if name is None:
            return _made([subject], lambda message: read(message) is not None)
        return _made([subject], lambda message: message.find_user(name)[0])

    # Values

    def arithmetic(self, parts: list[Any]) -> Part:
        """Compile `first + a - b`: operators of one precedence, applied from the left."""
        operands = [_value(part) for part in parts[::2]]
        first, rest = (
            operands[0].run,
            [(str(symbol), each.run) for symbol, each in zip(parts[1::2], operands[1:], strict=True)],
        )
        remarks = tuple(_hyphenated(parts))

        def run(message: FilteredMessage) -> Value:
            result = first(message)
            for symbol, operand in rest:
                result = values.calculate(symbol, result, operand(message))
            return result

        made = _made(operands, run, kind="")
        return replace(made, remarks=made.remarks + remarks)

    def signed(self, parts: list[Any]) -> Part:
        *signs, operand = parts
        operand, run = _value(operand), operand.run
        at = signs[0].start_pos
        if operand.kind not in ("", NUMBER, "a duration"):
            raise Misplaced(f"expected a number, got {operand.kind}", operand.at)
        negative = signs.count("-") % 2 == 1
        if operand.constant and operand.constant[0] is not None:
            value = values.negated(operand.constant[0]) if negative else operand.constant[0]
            return replace(operand, run=lambda _: value, constant=(value,), at=at)
        return replace(operand, run=(lambda message: values.negated(run(message))) if negative else run, at=at)

    def constant(self, parts: list[Token]) -> Part:
        [token] = parts
        at = token.start_pos or 0
        value: Value
        match token.type:
            case "TEXT":
                value = token[1:-1].replace("''", "'")
            case "INTEGER" if len(token) > 19 or int(token) > 2**63 - 1:
                raise Misplaced("the number does not fit 64 bits", at)
            case "INTEGER":
                value = int(token)
            case "REAL":
                value = float(token)
            case _:
                value = {"TRUE": True, "FALSE": False, "NULL": None}[token.type]
        kind = "" if value is None else values.kind_of(value)
        return Part(lambda _: value, at, kind, str(token), (value,))

    def field(self, parts: list[Token | None]) -> Part:
        scope, token = parts
        assert token is not None  # noqa: S101  # the grammar has one
        name, at = _unquoted(token), token.start_pos or 0
        key = name.lower()
        if scope is None and key in OWN:
            own = OWN[key]
            return Part(own.read, at, own.kind, own.name)
        if scope is not None and scope.lower() == "sys":
            return _system(name, at)
        if scope is not None and scope.lower() != "user":
            hint = f"write [{scope}.{name}] for an application property with a dot in its name"
            raise Misplaced(f"expected sys. or user. before a property, got {scope}.", scope.start_pos or 0, hint)
        remarks: tuple[str, ...] = ()
        if scope is None and f"sys.{key}" in SYSTEM:
            system = SYSTEM[f"sys.{key}"].name
            remarks = (f"{name} is an application property here; the message's own is {system}",)
        elif token.type == "QUOTED":
            remarks = (f"{token} is a property, as in brackets; text has single quotes: '{name}'",)
        is_bare = scope is None and token.type == "NAME"
        return Part(lambda message: message.user(key), at, name=name, user=key, is_bare=is_bare, remarks=remarks)

    def call(self, parts: list[Any]) -> Part:
        name, argument = parts
        word, at = name.lower(), name.start_pos or 0
        if word == "newid" and argument is None:
            return Part(lambda _: uuid.uuid4(), at, "a GUID")
        if word not in ("property", "p") or argument is None:
            raise Misplaced("expected property(NAME), p(NAME) or newid()", at)
        run = _value(argument).run
        _check_kind(argument, "text", "the name of a property is text")

        def read(message: FilteredMessage) -> Value:
            found = run(message)
            if found is None:
                return None
            if not isinstance(found, str):
                raise Incalculable(f"the name of a property is text, not {values.kind_of(found)}")
            return message.user(found.lower())

        return _deeper(Part(read, at, depth=argument.depth, remarks=argument.remarks))

    def group(self, parts: list[Part]) -> Part:
        return _deeper(parts[0])


def _deeper(part: Part) -> Part:
    if part.depth >= MAX_DEPTH:
        raise Misplaced(f"the filter nests deeper than {MAX_DEPTH}", part.at)
    return replace(part, depth=part.depth + 1)


def _made(parts: Sequence[Part], run: Run, kind: str = _CONDITION) -> Part:
    """Return a part made of others."""
    remarks = tuple(dict.fromkeys(remark for part in parts for remark in part.remarks))
    doubts = tuple(dict.fromkeys(doubt for part in parts for doubt in part.doubts))
    return Part(run, parts[0].at, kind, remarks=remarks, doubts=doubts, depth=max(part.depth for part in parts))


def _doubted(made: Part, subject: Part, others: Sequence[Part]) -> Part:
    """Return a comparison, with a doubt about each name that is compared with a property: it may be meant as text."""
    bare = [part.name for part in others if part.is_bare and subject.name and not subject.constant]
    doubts = (f"{name} is an application property; text has single quotes: '{name}'" for name in bare)
    return replace(made, doubts=(*made.doubts, *doubts))


# Checks while compiling


def _condition(part: Part) -> Part:
    if part.kind != _CONDITION:
        hint = f"compare it, as in {part.name} = TRUE" if part.name and not part.constant else "compare it with a value"
        raise Misplaced(f"expected a condition, got {part.name or 'a value'}", part.at, hint)
    return part


def _value(part: Part) -> Part:
    if part.kind == _CONDITION:
        raise Misplaced("expected a value, got a condition", part.at)
    return part


def _property(part: Part, what: str) -> Part:
    if not part.name or part.constant:
        raise Misplaced(f"{what} applies to a property only", part.at)
    return part


def _check_kind(part: Part, kind: str, why: str) -> None:
    if _value(part).kind not in ("", kind):
        raise Misplaced(f"{why}, not {part.kind}", part.at)


def _system(name: str, at: int) -> Part:
    found = SYSTEM.get(f"sys.{name.lower()}")
    if found is None:
        names = {key.removeprefix("sys."): each.name for key, each in SYSTEM.items()}
        close = difflib.get_close_matches(name.lower(), names, 1)
        hint = f"did you mean {names[close[0]]}?" if close else f"expected one of {', '.join(names.values())}"
        raise Misplaced(f"there is no system property sys.{name}", at, hint)
    return Part(found.read, at, found.kind, found.name)


def _comparable(left: Part, right: Part, symbol: str) -> tuple[Part, Part]:
    """Return both, text beside a time or duration converted. Raises Misplaced for kinds that never compare."""
    left, right = _value(left), _value(right)
    left, right = _timed(left, right.kind), _timed(right, left.kind)
    kinds = {left.kind, right.kind} - {""}
    if len(kinds) > 1:
        raise Misplaced(f"cannot compare {left.kind} with {right.kind}", right.at)
    if kinds & {"true or false", "a GUID"} and symbol not in EQUALITY:
        raise Misplaced(f"{kinds.pop()} can only be compared by = and <>", right.at)
    return left, right


def _timed(part: Part, other: str) -> Part:
    """Convert text or a number to the kind that it is compared with, a time or duration."""
    if not part.constant or other not in _TIMES or part.kind not in ("text", NUMBER):
        return part
    convert, hint = _TIMES[other]
    given = part.constant[0]
    made = convert(given) if part.kind == "text" else values.seconds(given) if other in _SECONDS else None
    if made is None:
        raise Misplaced(f"expected {other}, got {part.name}", part.at, hint)
    return replace(part, run=lambda _: made, kind=other, constant=(made,))


def _unquoted(name: Token) -> str:
    if name.type == "BRACKETED":
        return name[1:-1].replace("]]", "]")
    return name[1:-1].replace('""', '"') if name.type == "QUOTED" else str(name)


def _hyphenated(parts: list[Any]) -> list[str]:
    """Return a remark for a name with hyphens, which is a subtraction without brackets."""
    names, signs = parts[::2], parts[1::2]
    written = [names[0].name]
    for before, sign, after in zip(names, signs, names[1:], strict=False):
        is_close = (before.at + len(before.name), after.at) == (sign.start_pos, sign.start_pos + 1)
        if sign != "-" or before.user is None or not after.name or not is_close:
            return []
        written.append(after.name)
    name = "-".join(written)
    return [f"{name} is a subtraction; write [{name}] for an application property of that name"]


# Conditions


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _decided_by(decisive: bool, parts: list[Part]) -> Part:
    """Combine conditions: False decides AND, True decides OR; else one unknown makes the whole unknown."""
    runs = [_condition(part).run for part in parts]

    def run(message: FilteredMessage) -> bool | None:
        answer: bool | None = not decisive
        for test in runs:
            one: bool | None = test(message)
            if one is decisive:
                return decisive
            answer = None if one is None else answer
        return answer

    return _made(parts, run)


def _comparison(symbol: str, left: Part, right: Part) -> Run:
    one, other = left.run, right.run
    if not right.constant or right.kind not in ("text", NUMBER):
        return lambda message: values.compare(symbol, one(message), other(message))
    [wanted] = right.constant
    kind, apply = type(wanted), values.COMPARE[symbol]

    def run(message: FilteredMessage) -> bool | None:
        # The usual case, at half of its cost.
        found = one(message)
        return bool(apply(found, wanted)) if type(found) is kind else values.compare(symbol, found, wanted)

    return run


def _membership(subject: Part, choices: list[Part], negated: bool) -> Run:
    value_of, runs = subject.run, [choice.run for choice in choices]
    all_text = all(choice.constant and choice.kind == "text" for choice in choices)
    texts = frozenset(choice.constant[0] for choice in choices) if all_text else frozenset[Value]()

    def run(message: FilteredMessage) -> bool | None:
        found = value_of(message)
        if found is None:
            return None
        if all_text and type(found) is str:
            return (found in texts) is not negated
        answer: bool | None = False
        for choice in runs:
            same = values.compare("=", found, choice(message))
            if same:
                return not negated
            answer = None if same is None else answer
        return None if answer is None else negated

    return run


# The result


@dataclass(frozen=True, slots=True)
class FilterCounts:
    """The messages of a run that a filter was calculated for: `chosen` and `skipped` ones.

    Those among the skipped ones are `failed` for which it could not be calculated.
    """

    text: str
    chosen: int
    skipped: int
    failed: int
    first_failure: str
    remarks: tuple[str, ...]


@dataclass
class MessageFilter:
    """A compiled filter. `remarks` are doubts about its text, for the user, and `doubts` those if nothing matches.

    `chosen` counts messages that match.

    `failures` counts messages for which it could not be calculated, and which were not chosen; `first_failure` is why.
    With `reasons`, a message also needs one of these as its dead-letter reason, in any case; "" is that of dead letters
    without one. Without a text, nothing else.
    """

    text: str
    chosen: int = 0
    failures: int = 0
    first_failure: str = ""
    remarks: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    reasons: Collection[str] = ()

    def __post_init__(self) -> None:
        """Compile the text. Raises FilterInvalid."""
        if self.text or not self.reasons:
            part = compile_text(self.text)
            self._run, self.remarks, self.doubts = part.run, part.remarks, part.doubts
        else:
            self._run = lambda _message: True
        self._reasons = frozenset(map(str.lower, self.reasons))

    def choose(self, messages: Sequence[Any], now_ms: int) -> list[bool]:
        """Return which received messages the filter is true for, at a time of the service in ms since 1970."""
        views = getattr(messages, "views", None)  # of undecoded ones
        if views is not None:
            return list(map(self.matches, views(now_ms)))
        return [self.matches(FilteredMessage(each.facts, each.content, now_ms)) for each in messages]

    def matches_peeked(self, facts: Facts, sections: Sections, now_ms: int) -> bool:
        """Return whether the filter is true for a peeked message; one without sections is not a message."""
        content = GenericMessage(sections) if len(sections) else None
        return self.matches(FilteredMessage(facts, content, now_ms))

    def counts(self, skipped: int) -> FilterCounts:
        return FilterCounts(self._full_text(), self.chosen, skipped, self.failures, self.first_failure, self.remarks)

    def _full_text(self) -> str:
        quoted = ", ".join("'{}'".format(each.replace("'", "''")) for each in sorted(self.reasons))
        reasons = f"reason IN ({quoted})" if quoted else ""
        return f"{reasons} AND ({self.text})" if reasons and self.text else self.text or reasons

    def matches(self, message: FilteredMessage) -> bool:
        """Return whether the filter is true for a message."""
        if self._reasons and _reason(message).lower() not in self._reasons:
            return False
        try:
            is_chosen = self._run(message) is True
        except Incalculable as error:
            self.failures += 1
            self.first_failure = self.first_failure or f"message {message.sequence_number}: {error.message}"
            return False
        self.chosen += is_chosen
        return is_chosen


def _reason(message: FilteredMessage) -> str:
    """Return the dead-letter reason; "" without one, as of a message that cannot be read."""
    try:
        found = OWN["reason"].read(message)
    except Incalculable:
        return ""
    return found if isinstance(found, str) else ""
