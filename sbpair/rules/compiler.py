"""Expressions compiled to functions of a message's view: three-valued conditions and values, as the service has. Pure.

A text is compiled from its leaves to its root. AND and OR stop at the operand that decides. An unknown property is
unknown; a value that cannot be calculated raises EvaluationFailed.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sbpair.amqp.types import Value
from sbpair.rules import operators, values
from sbpair.rules.values import EQUALITY, NUMBER, SPAN, TEXT, TIME, EvaluationFailed, Truth
from sbpair.rules.view import SYSTEM_PROPERTIES, MessageView, SystemProperty

if TYPE_CHECKING:
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput


class SqlMistake(Exception):
    """A mistake in a text, at a character from 0. `token` is what stands there; `hint` may be empty."""

    def __init__(self, mistake: str, at: int, hint: str = "", *, token: str = "") -> None:
        super().__init__(mistake)
        self.mistake, self.at, self.hint, self.token = mistake, at, hint, token


GRAMMAR: Final = r"""
filter: either
action: statement (";"* statement)* ";"*
statement: SET field EQUALS sum -> set
         | REMOVE field         -> remove
?either: both (_OR both)*
?both: inverted (_AND inverted)*
?inverted: test
         | NOT+ test
?test: sum
     | sum (ORDER | EQUALS) sum                        -> comparison
     | sum IS [NOT] NULL                               -> is_null
     | sum [NOT] IN "(" sum ("," sum)* ")"             -> is_in
     | sum [NOT] LIKE sum [ESCAPE sum]                 -> like
     | EXISTS "(" sum ")"                              -> exists
?sum: product
    | product (SIGN product)+                          -> arithmetic
?product: signed
        | signed (FACTOR signed)+                      -> arithmetic
?signed: operand
       | SIGN+ operand
?operand: (TEXT | INTEGER | REAL | TRUE | FALSE | NULL) -> constant
        | field
        | PARAMETER                                    -> parameter
        | NAME "(" [either] ")"                        -> call
        | "(" either ")"                               -> group
field: [NAME "."] (NAME | BRACKETED | QUOTED)

NAME: /[^\W\d]\w*/
BRACKETED: /\[(?:[^\]]|\]\])+\]/
QUOTED: /"(?:[^"]|"")+"/
TEXT: /'(?:[^']|'')*'/
PARAMETER: /@\w+/
REAL.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /[0-9]+/
ORDER: /<>|!=|<=|>=|<|>/
EQUALS: "="
SIGN: /[+-]/
FACTOR: /[*\/%]/
%declare _AND ESCAPE EXISTS FALSE IN IS LIKE NOT NULL _OR REMOVE SET TRUE
%ignore /\s+/
"""

_KEYWORDS: Final = {
    word: f"_{word}" if word in ("AND", "OR") else word
    for word in "AND ESCAPE EXISTS FALSE IN IS LIKE NOT NULL OR REMOVE SET TRUE".split()  # noqa: SIM905  # words
}
_NAMES: Final = {
    "_AND": "AND", "_OR": "OR", "RPAR": "')'", "LPAR": "'('", "COMMA": "','", "DOT": "'.'", "SEMICOLON": "';'",
    "$END": "the end", "EQUALS": "a comparison", "ORDER": "a comparison", "SIGN": "an operator",
    "FACTOR": "an operator",
}  # fmt: skip


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    # The basic lexer: a keyword is a keyword at every position.
    callbacks = {"NAME": _keyword}
    return Lark(GRAMMAR, start=["filter", "action"], parser="lalr", lexer="basic", lexer_callbacks=callbacks)


def parse(start: str, text: str) -> Tree[Token]:
    """Return the tree of a text, a "filter" or an "action". Raises SqlMistake."""
    from lark.exceptions import UnexpectedInput

    try:
        return _parser().parse(text, start)
    except UnexpectedInput as error:
        raise _mistake(error, text) from None


def _mistake(error: UnexpectedInput, text: str) -> SqlMistake:
    from lark.exceptions import UnexpectedToken

    if not isinstance(error, UnexpectedToken):
        at = error.pos_in_stream or 0
        return SqlMistake(_unknown(text[at]), at, _CHARACTER_HINTS.get(text[at], ""), token=text[at])
    token = error.token
    is_end = token.type == "$END"
    got = "the end" if is_end else repr(str(token))
    at = len(text.rstrip()) if is_end else token.start_pos or 0
    hint = ""
    if text[max(0, at - 1) : at + 1] == "==":
        hint = "write one = for equal"
    elif text[:at].endswith("'"):
        hint = _CHARACTER_HINTS["'"]
    mistake = f"expected {_listed(error.accepts or error.expected)}, got {got}"
    return SqlMistake(mistake, at, hint, token="" if is_end else str(token))


def _listed(expected: set[str]) -> str:
    """Return the tokens that may follow, in words."""
    if "NAME" in expected:
        return "a value or a property"
    found = sorted({_NAMES.get(each, each) for each in expected if len(expected) == 1 or each not in ("DOT", "LPAR")})
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _unknown(character: str) -> str:
    unclosed = {"'": "text that begins here has no closing '", "[": "this name has no closing ]", '"': 'no closing "'}
    return unclosed.get(character, f"{character!r} does not belong in a filter")


_CHARACTER_HINTS: Final = {
    "'": "write a quote within text twice: 'it''s'",
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT, or <> for unequal",
}


def _keyword(token: Token) -> Token:
    kind = _KEYWORDS.get(token.upper())
    if kind is not None:
        token.type = kind
    return token


MAX_DEPTH: Final = 64
Run: TypeAlias = Callable[[Any], Value]
Predicate: TypeAlias = Callable[[MessageView], Truth]
Parameters: TypeAlias = Mapping[str, Value]
"""Values by name in lower case, without the @."""

_CONDITION: Final = "a condition"
_TIMES: Final[dict[str, tuple[Callable[[str], Value], str]]] = {
    SPAN: (values.to_span, values.SPAN_HINT),
    TIME: (values.to_instant, values.TIME_HINT),
}


@dataclass(frozen=True)
class Dialect:
    """The names that a text may use. `system` are properties with the scope `sys`, `own` those without a scope.

    `parameters` is None where a text has none. With `checks`, kinds are compared while compiling, and text beside a
    time or a duration is one; the service does neither.
    """

    parameters: Parameters | None = None
    system: Mapping[str, SystemProperty] = field(default_factory=lambda: SYSTEM_PROPERTIES)
    own: Mapping[str, SystemProperty] = field(default_factory=dict)
    checks: bool = False


@dataclass(frozen=True)
class Part:
    """A compiled part of a text, at a character of it. `kind` is "" if it depends on the message.

    `constant` holds the value of a constant. `user` is the name, in lower case, of an application property, `system`
    that of a system property, and `is_bare` is whether it may be meant as text. `doubts` matter if no message matches.
    `depth` is how deep it nests.
    """

    run: Run
    at: int
    kind: str = ""
    name: str = ""
    constant: tuple[Value, ...] = ()
    user: str | None = None
    system: str | None = None
    is_bare: bool = False
    remarks: tuple[str, ...] = field(default=(), compare=False)
    doubts: tuple[str, ...] = field(default=(), compare=False)
    depth: int = 0


class Compiler:
    """Compiles each rule of the grammar from its parts. Methods have the names of the rules.

    `named` are the application properties that texts name, by name in lower case; `own_named` are names of the dialect.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.named: dict[str, str] = {}
        self.own_named: set[str] = set()
        self._compare = operators.compare_leniently if dialect.checks else operators.compare
        self._calculate = operators.calculate_leniently if dialect.checks else operators.calculate

    def compile(self, start: str, text: str) -> Any:
        """Compile a "filter" to a Part. Raises SqlMistake."""
        made: Any = None
        parts: dict[int, Any] = {}
        for tree in parse(start, text).iter_subtrees():
            made = getattr(self, tree.data)([parts.get(id(child), child) for child in tree.children])
            parts[id(tree)] = made
        return made

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
        left, right = self._comparable(left, right, symbol)
        made = _made([left, right], self._comparison(symbol, left, right))
        return _doubted(made, left, [right]) if symbol in EQUALITY else made

    def is_null(self, parts: list[Any]) -> Part:
        subject, run, negated = _property(parts[0], "IS NULL"), parts[0].run, parts[2] is not None
        return _made([subject], lambda message: (run(message) is None) is not negated)

    def is_in(self, parts: list[Any]) -> Part:
        subject, negation, _in, *choices = parts
        compared = [self._comparable(subject, choice, "=")[1] for choice in choices]
        made = _made([subject, *compared], self._membership(subject, compared, negation is not None))
        return _doubted(made, subject, compared)

    def like(self, parts: list[Any]) -> Part:
        subject, negation, _like, wanted, _escape, sign = parts
        others = [wanted] if sign is None else [wanted, sign]
        for each in (subject, *others):
            self._check_kind(each, TEXT, "LIKE compares text")
        text_of, pattern_of, negated = subject.run, wanted.run, negation is not None
        sign_of: Run = (lambda _: "") if sign is None else sign.run

        def run(message: MessageView) -> Truth:
            found = [text_of(message), pattern_of(message), sign_of(message)]
            if None in found:
                return None
            text, pattern, escape = found
            if not (isinstance(text, str) and isinstance(pattern, str)):
                raise operators.cannot_apply("LIKE", text, pattern)
            if sign is not None and not (isinstance(escape, str) and len(escape) == 1):
                raise EvaluationFailed("An escape character is a text of one character.")
            return (operators.like_pattern(pattern, escape).fullmatch(text) is not None) is not negated

        if sign is not None or not wanted.constant or wanted.kind != TEXT:
            return _made([subject, *others], run)
        matches = operators.like_pattern(wanted.constant[0]).fullmatch

        def run_usual(message: MessageView) -> Truth:
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
        operands, calculate = [value_of(part) for part in parts[::2]], self._calculate
        first = operands[0].run
        rest = [(str(symbol), each.run) for symbol, each in zip(parts[1::2], operands[1:], strict=True)]

        def run(message: MessageView) -> Value:
            result = first(message)
            for symbol, operand in rest:
                result = calculate(symbol, result, operand(message))
            return result

        made = _made(operands, run, kind="")
        return replace(made, remarks=(*made.remarks, *_hyphenated(parts)))

    def signed(self, parts: list[Any]) -> Part:
        *signs, operand = parts
        operand, run = value_of(operand), operand.run
        at, sign = signs[0].start_pos, "-" if signs.count("-") % 2 else "+"
        if self.dialect.checks and operand.kind not in ("", NUMBER, SPAN):
            raise SqlMistake(f"expected a number, got {operand.kind}", operand.at)
        if operand.constant and operand.kind == NUMBER:
            value = operators.signed(sign, operand.constant[0])
            return replace(operand, run=lambda _: value, constant=(value,), at=at)
        return _made([operand], lambda message: operators.signed(sign, run(message)), kind=operand.kind)

    def constant(self, parts: list[Token]) -> Part:
        [token] = parts
        at = token.start_pos or 0
        value: Value
        match token.type:
            case "TEXT":
                value = token[1:-1].replace("''", "'")
            case "INTEGER" if len(token) > 19 or int(token) > 2**63 - 1:
                raise SqlMistake("the number does not fit 64 bits", at, token=token)
            case "INTEGER":
                value = int(token)
            case "REAL":
                value = float(token)
            case _:
                value = {"TRUE": True, "FALSE": False, "NULL": None}[token.type]
        return Part(lambda _: value, at, values.kind_of(value), str(token), (value,))

    def parameter(self, parts: list[Token]) -> Part:
        [token] = parts
        at, given = token.start_pos or 0, self.dialect.parameters
        if given is None:
            raise SqlMistake(
                "'@' does not belong in a filter", at, "parameters have no values here: write the value itself"
            )
        if token[1:].lower() not in given:
            raise SqlMistake("the parameter is not given", at, token=token)
        value = given[token[1:].lower()]
        return Part(lambda _: value, at, values.kind_of(value), str(token), (value,))

    def field(self, parts: list[Token | None]) -> Part:
        scope, token = parts
        assert token is not None  # noqa: S101  # the grammar has one
        name, at = _unquoted(token), token.start_pos or 0
        key = name.lower()
        if scope is None and key in self.dialect.own:
            own = self.dialect.own[key]
            self.own_named.add(key)
            return Part(own.read, at, own.kind, own.name)
        if scope is not None and scope.lower() == "sys":
            return self._system(name, token)
        if scope is not None and scope.lower() != "user":
            hint = f"write [{scope}.{name}] for an application property with a dot in its name"
            mistake = f"expected sys. or user. before a property, got {scope}."
            raise SqlMistake(mistake, scope.start_pos or 0, hint, token=scope)
        if token.type == "NAME" and name.startswith("_") and not self.dialect.checks:
            raise SqlMistake("a name begins with a letter", at, f"write [{name}]", token=token)
        remarks: tuple[str, ...] = ()
        if scope is None and key in SYSTEM_PROPERTIES:
            remarks = (
                f"{name} is an application property here; the message's own is sys.{SYSTEM_PROPERTIES[key].name}",
            )
        elif token.type == "QUOTED":
            remarks = (f"{token} is a property, as in brackets; text has single quotes: '{name}'",)
        is_bare = scope is None and token.type == "NAME"
        self.named.setdefault(key, name)
        return Part(lambda message: message.user(key), at, name=name, user=key, is_bare=is_bare, remarks=remarks)

    def call(self, parts: list[Any]) -> Part:
        name, argument = parts
        word, at = name.lower(), name.start_pos or 0
        if word == "newid" and argument is None:
            return Part(lambda _: uuid.uuid4(), at, "a GUID")
        if word not in ("property", "p") or argument is None:
            raise SqlMistake("expected property(NAME), p(NAME) or newid()", at, token=name)
        run = value_of(argument).run
        self._check_kind(argument, TEXT, "the name of a property is text")

        def read(message: MessageView) -> Value:
            found = run(message)
            if found is not None and not isinstance(found, str):
                raise EvaluationFailed(f"The name of a property is text, not a '{values.type_name(found)}'.")
            return None if found is None else message.user(found.lower())

        return _deeper(Part(read, at, depth=argument.depth, remarks=argument.remarks))

    def group(self, parts: list[Part]) -> Part:
        return _deeper(parts[0])

    # Checks while compiling, and functions

    def _system(self, name: str, token: Token) -> Part:
        found, at = self.dialect.system.get(name.lower()), token.start_pos or 0
        if found is None:
            names = {key: f"sys.{each.name}" for key, each in self.dialect.system.items()}
            close = difflib.get_close_matches(name.lower(), names, 1)
            hint = f"did you mean {names[close[0]]}?" if close else f"expected one of {', '.join(names.values())}"
            if name.lower() in self.dialect.own:
                hint = f"write {name.lower()}, without sys."
            mistake = f"there is no system property sys.{name}"
            if not self.dialect.checks:
                mistake = f"The specified property '{name[:100]}' does not exist or is not allowed"
            raise SqlMistake(mistake, at, hint, token=token)
        return Part(found.read, at, found.kind if self.dialect.checks else "", f"sys.{found.name}", system=name.lower())

    def _check_kind(self, part: Part, kind: str, why: str) -> None:
        if value_of(part).kind not in ("", kind) and self.dialect.checks:
            raise SqlMistake(f"{why}, not {part.kind}", part.at)

    def _comparable(self, left: Part, right: Part, symbol: str) -> tuple[Part, Part]:
        """Return both, text beside a time or duration converted. Raises SqlMistake for kinds that never compare."""
        left, right = value_of(left), value_of(right)
        if not self.dialect.checks:
            return left, right
        left, right = _timed(left, right.kind), _timed(right, left.kind)
        kinds = {left.kind, right.kind} - {""}
        if len(kinds) > 1:
            raise SqlMistake(f"cannot compare {left.kind} with {right.kind}", right.at)
        if kinds & {"true or false", "a GUID"} and symbol not in EQUALITY:
            raise SqlMistake(f"{kinds.pop()} can only be compared by = and <>", right.at)
        return left, right

    def _comparison(self, symbol: str, left: Part, right: Part) -> Run:
        one, other, compare = left.run, right.run, self._compare
        if not right.constant or right.kind not in (TEXT, NUMBER):
            return lambda message: compare(symbol, one(message), other(message))
        [wanted] = right.constant
        kind, apply = type(wanted), operators.COMPARE[symbol]

        def run(message: MessageView) -> Truth:
            # The usual case, at half of its cost.
            found = one(message)
            return bool(apply(found, wanted)) if type(found) is kind else compare(symbol, found, wanted)

        return run

    def _membership(self, subject: Part, choices: list[Part], negated: bool) -> Run:
        read, runs, compare = subject.run, [choice.run for choice in choices], self._compare
        all_text = all(choice.constant and choice.kind == TEXT for choice in choices)
        texts = frozenset(choice.constant[0] for choice in choices) if all_text else frozenset[Value]()

        def run(message: MessageView) -> Truth:
            found = read(message)
            if found is None:
                return None
            if all_text and type(found) is str:
                return (found in texts) is not negated
            answer: Truth = False
            for choice in runs:
                same = compare("=", found, choice(message))
                if same:
                    return not negated
                answer = None if same is None else answer
            return None if answer is None else negated

        return run


def _deeper(part: Part) -> Part:
    if part.depth >= MAX_DEPTH:
        raise SqlMistake(f"the expression nests deeper than {MAX_DEPTH}", part.at, token="(")  # noqa: S106  # no secret
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


def _condition(part: Part) -> Part:
    if part.kind != _CONDITION:
        hint = f"compare it, as in {part.name} = TRUE" if part.name and not part.constant else "compare it with a value"
        raise SqlMistake(f"expected a condition, got {part.name or 'a value'}", part.at, hint)
    return part


def value_of(part: Part) -> Part:
    """Return a part that has a value. Raises SqlMistake for a condition."""
    if part.kind == _CONDITION:
        raise SqlMistake("expected a value, got a condition", part.at)
    return part


def _property(part: Part, what: str) -> Part:
    if not part.name or part.constant:
        raise SqlMistake(f"{what} applies to a property only", part.at)
    return part


def _timed(part: Part, other: str) -> Part:
    """Convert text or a number to the kind that it is compared with, a time or duration."""
    if not part.constant or other not in _TIMES or part.kind not in (TEXT, NUMBER):
        return part
    convert, hint = _TIMES[other]
    given = part.constant[0]
    made = convert(given) if part.kind == TEXT else values.seconds(given) if other == SPAN else None
    if made is None:
        raise SqlMistake(f"expected {other}, got {part.name}", part.at, hint)
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


def _not(answer: Truth) -> Truth:
    return None if answer is None else not answer


def _decided_by(decisive: bool, parts: list[Part]) -> Part:
    """Combine conditions: False decides AND, True decides OR; else one unknown makes the whole unknown."""
    runs = [_condition(part).run for part in parts]

    def run(message: MessageView) -> Truth:
        answer: Truth = not decisive
        for test in runs:
            one: Truth = test(message)
            if one is decisive:
                return decisive
            answer = None if one is None else answer
        return answer

    return _made(parts, run)
