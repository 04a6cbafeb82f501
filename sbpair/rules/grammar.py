"""The grammar of filters and actions: it returns a tree of its rules, or raises SqlMistake. Pure.

The grammar is the documented one. The parser is LALR, so its time is linear in the text, whose length the callers
limit. The parser library is imported with the first text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

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
