"""The parser of SQL filters and actions: it returns a tree of the grammar's rules, or raises SqlInvalid.

The grammar is the documented one. The parser is LALR, so its time is linear in the text, whose length is bounded. The
parser library is imported with the first text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput

MAX_LENGTH: Final = 1024


class SqlInvalid(ArgumentInvalid):
    """An invalid filter or action. `line` counts from 1 and `column` from 0, as the service does."""

    def __init__(self, details: str, *, token: str = "", line: int = 1, column: int = 0) -> None:
        self.token, self.line, self.column = token, line, column
        super().__init__(
            "There was an error parsing the SQL expression. "
            f"[Token line={line}, column={column}, Token in error={token[:100]}, Additional details= {details}]"
        )


def parse(start: str, text: str) -> Tree[Token]:
    """Return the tree of a text, a "filter" or an "action". Raises SqlInvalid."""
    if len(text) > MAX_LENGTH:
        raise SqlInvalid(f"the expression is {len(text)} characters long, and may be {MAX_LENGTH} at most")
    from lark.exceptions import UnexpectedInput

    try:
        return _parser().parse(text, start)
    except UnexpectedInput as error:
        raise _sql_invalid(error, text) from error


def _sql_invalid(error: UnexpectedInput, text: str) -> SqlInvalid:
    from lark.exceptions import UnexpectedToken

    if not isinstance(error, UnexpectedToken):
        details = "no token begins with this, or it does not end"
        return SqlInvalid(details, token=getattr(error, "char", ""), line=error.line, column=error.column - 1)
    expected = ", or ".join(sorted(str(name) for name in error.expected))
    if error.token.type == "$END":
        details = f"syntax error, unexpected EOF, expecting {expected}"
        return SqlInvalid(details, line=text.count("\n") + 1, column=len(text) - text.rfind("\n") - 1)
    return invalid_at(error.token, f"syntax error, unexpected {error.token.type}, expecting {expected}")


def invalid_at(token: Token | None, details: str) -> SqlInvalid:
    if token is None:
        return SqlInvalid(details)
    return SqlInvalid(details, token=str(token), line=token.line or 1, column=(token.column or 1) - 1)


# The grammar

KEYWORDS: Final = frozenset(
    "AND ESCAPE EXISTS FALSE IN IS LIKE NOT NULL OR REMOVE SET TRUE".split()  # noqa: SIM905  # a list of words
)

_GRAMMAR: Final = r"""
filter: disjunction
action: statement (";"* statement)* ";"*
statement: SET property EQUALS sum -> set
         | REMOVE property         -> remove
?disjunction: conjunction
            | conjunction (OR conjunction)+
?conjunction: negation
            | negation (AND negation)+
?negation: predicate
         | NOT+ predicate
?predicate: sum
          | sum (COMPARATOR | EQUALS) sum       -> comparison
          | sum IS [NOT] NULL                   -> is_null
          | sum [NOT] IN "(" sum ("," sum)* ")" -> is_in
          | sum [NOT] LIKE sum [ESCAPE sum]     -> like
          | EXISTS "(" property ")"             -> exists
?sum: product
    | product (SIGN product)+     -> chain
?product: signed
        | signed (FACTOR signed)+ -> chain
?signed: atom
       | SIGN+ atom
?atom: (STRING | INTEGER | DECIMAL | APPROXIMATE | TRUE | FALSE | NULL) -> constant
     | property
     | PARAMETER                        -> parameter
     | IDENTIFIER "(" [disjunction] ")" -> function
     | "(" disjunction ")"              -> nested
property: [IDENTIFIER "."] (IDENTIFIER | DELIMITED | QUOTED)

IDENTIFIER: /[^\W\d_]\w*/
DELIMITED: /\[(?:[^\]]|\]\])+\]/
QUOTED: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
PARAMETER: /@\w+/
APPROXIMATE.3: /(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][+-]?[0-9]+/
DECIMAL.2: /[0-9]+\.[0-9]*|\.[0-9]+/
INTEGER: /[0-9]+/
COMPARATOR: /<>|!=|<=|>=|<|>/
EQUALS: "="
SIGN: /[+-]/
FACTOR: /[*\/%]/
%declare KEYWORDS
%ignore /\s+/
""".replace("KEYWORDS", " ".join(sorted(KEYWORDS)))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    return Lark(
        _GRAMMAR,
        start=["filter", "action"],
        parser="lalr",
        # Not the contextual lexer: a keyword is a keyword at every position.
        lexer="basic",
        lexer_callbacks={"IDENTIFIER": _keyword},
    )


def _keyword(token: Token) -> Token:
    word = token.upper()
    if word in KEYWORDS:
        token.type = word
    return token
