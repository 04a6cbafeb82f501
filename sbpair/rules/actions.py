"""The actions of rules: the statements that change a message. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sbpair.rules.compiler import Compiler, Part, SqlMistake, value_of

MAX_STATEMENTS: Final = 32
SETTABLE: Final[dict[str, int | str]] = {
    "contenttype": 6, "correlationid": 5, "label": 3, "messageid": 0, "partitionkey": "x-opt-partition-key",
    "replyto": 4, "replytosessionid": 12, "scheduledenqueuetimeutc": "nowhere", "sessionid": 10, "subject": 3,
    "timetolive": "ttl", "to": 2,
}  # fmt: skip
"""Where an action writes a system property: a field of the properties section, or another place.

A subscription ignores a ScheduledEnqueueTimeUtc that was set.
"""


class Statement(NamedTuple):
    """A property that is set to a value, or removed where that is None. `system` is its name in lower case, if any."""

    name: str
    system: str | None
    value: Part | None


class ActionCompiler(Compiler):
    """Compiles the statements of actions."""

    def action(self, parts: list[Any]) -> tuple[Statement, ...]:
        if len(parts) > MAX_STATEMENTS:
            raise SqlMistake(f"an action has at most {MAX_STATEMENTS} statements", 0)
        return tuple(parts)

    def set(self, parts: list[Any]) -> Statement:
        _keyword, target, _equals, value = parts
        return _statement(target, value_of(value))

    def remove(self, parts: list[Any]) -> Statement:
        return _statement(parts[-1], None)


def _statement(target: Part, value: Part | None) -> Statement:
    if target.system is not None and target.system not in SETTABLE:
        raise SqlMistake(f"The system property '{target.system}' cannot be changed", target.at)
    return Statement(target.name, target.system, value)
