"""A fixture of every test: the AMQP connections that the product opens or accepts in this process are checked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.amqp.connection import Connection
from tests.strict_amqp.checker import OURS, THEIRS, Checker

ACCEPTED = "source.filter: the filter com.microsoft:session-filter is not described"
"""An answer of the emulator: `session_filter` in ASSUMPTIONS.md."""

PASSED_ON = " has a string as a key"
"""Some clients write maps of symbols so. A gateway passes them on as they came, in tests with odd messages."""


@pytest.fixture(autouse=True)
def _strict_amqp(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which our side of a connection breaks a rule of AMQP 1.0."""
    messages = request.node.get_closest_marker("odd_messages") is None
    checkers: dict[int, Checker] = {}
    kept: list[Connection] = []  # their ids are not given to others
    init, receive, take = Connection.__init__, Connection.receive_in_turn, Connection.take

    def created(self: Connection, *arguments: Any, **keywords: Any) -> None:
        init(self, *arguments, **keywords)
        # A test may speak AMQP itself, in order to break its rules.
        if sys._getframe(1).f_globals["__name__"].startswith("sbpair."):
            kept.append(self)
            checkers[id(self)] = Checker(messages=messages)

    def received(self: Connection, data: bytes, now: float) -> Any:
        if id(self) in checkers:
            checkers[id(self)].feed(data, THEIRS)
        return receive(self, data, now)

    def taken(self: Connection) -> bytes:
        out = take(self)
        if out and id(self) in checkers:
            checkers[id(self)].feed(out, OURS)
        return out

    monkeypatch.setattr(Connection, "__init__", created)
    monkeypatch.setattr(Connection, "receive_in_turn", received)
    monkeypatch.setattr(Connection, "take", taken)
    yield
    findings = [finding for each in checkers.values() for finding in each.findings if finding != ACCEPTED]
    findings = [finding for finding in findings if messages or not finding.endswith(PASSED_ON)]
    assert not findings, f"our side breaks AMQP 1.0: {'; '.join(dict.fromkeys(findings))}"
