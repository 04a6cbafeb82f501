"""The grammar of filters, and the mistakes in one: each shows the text with a mark below its column.

The parser is LALR, so its time is linear in the text. The parser library is imported with the first filter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sbpair.errors import UsageError

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

MAX_TEXT: Final = 100_000
"""Characters of a filter: a list of a thousand message ids fits."""

_SHOWN_BEFORE, _SHOWN = 50, 72
HINT: Final = "for example: --where \"sys.Label = 'red' AND age < '1h'\""


class FilterInvalid(UsageError):
    """A mistake in a filter. `column` counts from 1; `excerpt` are the text and a mark below the column."""

    def __init__(self, mistake: str, text: str, at: int, *, hint: str = HINT) -> None:
        super().__init__(f"--where: {mistake} (column {at + 1})", hint=hint)
        self.column = at + 1
        self.excerpt = marked(text, at)


def marked(text: str, at: int) -> tuple[str, str]:
    """Return a text, cut if it is long, and a mark below the character at an index."""
    line = "".join(each if each.isprintable() else " " for each in text)
    start = max(0, at - _SHOWN_BEFORE)
    shown = ("…" if start else "") + line[start : start + _SHOWN] + ("…" if len(line) > start + _SHOWN else "")
    return f"  {shown}", " " * (2 + bool(start) + at - start) + "^"


GRAMMAR: Final = r"""
filter: either
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
        | [NAME "."] (NAME | BRACKETED | QUOTED)       -> field
        | NAME "(" [either] ")"                        -> call
        | "(" either ")"                               -> group

NAME: /[^\W\d]\w*/
BRACKETED: /\[(?:[^\]]|\]\])+\]/
QUOTED: /"(?:[^"]|"")+"/
TEXT: /'(?:[^']|'')*'/
REAL.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /[0-9]+/
ORDER: /<>|!=|<=|>=|<|>/
EQUALS: "="
SIGN: /[+-]/
FACTOR: /[*\/%]/
%declare _AND ESCAPE EXISTS FALSE IN IS LIKE NOT NULL _OR TRUE
%ignore /\s+/
"""

_KEYWORDS: Final = {
    word: f"_{word}" if word in ("AND", "OR") else word
    for word in ("AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
}
_NAMES: Final = {
    "_AND": "AND", "_OR": "OR", "RPAR": "')'", "LPAR": "'('", "COMMA": "','", "DOT": "'.'",
    "$END": "the end", "EQUALS": "a comparison", "ORDER": "a comparison", "SIGN": "an operator",
    "FACTOR": "an operator",
}  # fmt: skip


@lru_cache(maxsize=1)
def parser(builder: type) -> Lark:
    """Return the parser that calls a method of `builder` for each rule."""
    from lark import Lark

    keywords = {"NAME": _keyword}
    # The basic lexer: a keyword is a keyword at every position.
    return Lark(GRAMMAR, start="filter", parser="lalr", lexer="basic", lexer_callbacks=keywords, transformer=builder())


def parse(text: str, builder: type) -> Any:
    """Return the result of the last rule. Raises FilterInvalid."""
    if len(text) > MAX_TEXT:
        raise FilterInvalid(f"the filter has {len(text)} characters; the limit is {MAX_TEXT}", text, 0)
    if not text.strip():
        raise FilterInvalid("expected a condition, got an empty text", text, 0)
    from lark.exceptions import UnexpectedInput

    try:
        return parser(builder).parse(text)
    except UnexpectedInput as error:
        raise _mistake(error, text) from None
    except Misplaced as error:
        raise FilterInvalid(error.mistake, text, error.at, hint=error.hint) from None


class Misplaced(Exception):
    """A mistake that the grammar permits, at a character of the text, from 0."""

    def __init__(self, mistake: str, at: int, hint: str = HINT) -> None:
        super().__init__(mistake)
        self.mistake, self.at, self.hint = mistake, at, hint


def _mistake(error: UnexpectedInput, text: str) -> FilterInvalid:
    from lark.exceptions import UnexpectedToken

    at = error.pos_in_stream
    if not isinstance(error, UnexpectedToken):
        at = at or 0
        return FilterInvalid(_unknown(text[at]), text, at, hint=_character_hint(text[at]))
    token = error.token
    got = "the end" if token.type == "$END" else repr(str(token))
    at = len(text.rstrip()) if token.type == "$END" else token.start_pos or 0
    hint = HINT
    if text[max(0, at - 1) : at + 1] == "==":
        hint = "write one = for equal"
    elif text[:at].endswith("'"):
        hint = _character_hint("'")
    return FilterInvalid(f"expected {_listed(error.accepts or error.expected)}, got {got}", text, at, hint=hint)


def _listed(expected: set[str]) -> str:
    """Return the tokens that may follow, in words."""
    if "NAME" in expected:
        return "a value or a property"
    found = sorted({_NAMES.get(each, each) for each in expected if len(expected) == 1 or each not in ("DOT", "LPAR")})
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _unknown(character: str) -> str:
    unclosed = {"'": "text that begins here has no closing '", "[": "this name has no closing ]", '"': 'no closing "'}
    return unclosed.get(character, f"{character!r} does not belong in a filter")


def _character_hint(character: str) -> str:
    return {
        "@": "parameters have no values here: write the value itself",
        "'": "write a quote within text twice: 'it''s'",
        "&": "write AND",
        "|": "write OR",
        "!": "write NOT, or <> for unequal",
    }.get(character, HINT)


def _keyword(token: Token) -> Token:
    kind = _KEYWORDS.get(token.upper())
    if kind is not None:
        token.type = kind
    return token
