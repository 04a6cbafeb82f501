"""SASL sign-in, before AMQP begins. AMQP 1.0, part 5.3, and RFC 4616 for PLAIN.

Service Bus accepts ANONYMOUS, EXTERNAL and MSSBCBS, then expects a token on `$cbs`; PLAIN carries a key and its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sbpair.amqp.performatives import Error, SaslInit, SaslMechanisms, SaslOutcome
from sbpair.amqp.types import Array, Symbol

ANONYMOUS, PLAIN, EXTERNAL, MSSBCBS = "ANONYMOUS", "PLAIN", "EXTERNAL", "MSSBCBS"
MECHANISMS = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)

OK, AUTH_FAILED = 0, 1
WELCOME = b"Welcome!"
"""The addition of the service to a sign-in that it accepts."""


@dataclass(frozen=True, slots=True)
class SaslClient:
    """A client's sign-in: a mechanism and its initial response."""

    mechanism: str = ANONYMOUS
    response: bytes = field(default=b"", repr=False)

    def init(self, hostname: str | None) -> SaslInit:
        return SaslInit(self.mechanism, self.response, hostname)


def offered(mechanisms: SaslMechanisms) -> tuple[str, ...]:
    """Return the mechanisms of an offer: an array of symbols, or a single one."""
    names = mechanisms.sasl_server_mechanisms
    return (names,) if isinstance(names, str) else tuple(names or ())


def refusal(outcome: SaslOutcome) -> Error:
    """Return the error of a connection whose sign-in has failed."""
    if outcome.code == AUTH_FAILED:
        return Error("amqp:unauthorized-access", "The sign-in was refused (SASL).")
    return Error("amqp:internal-error", f"The peer could not check the sign-in (SASL code {outcome.code}).")


@dataclass(frozen=True, slots=True)
class SaslServer:
    """A server's decision: `check_plain(user, password)` for PLAIN; the other mechanisms are accepted."""

    check_plain: Callable[[str, str], bool] = field(default=lambda _user, _password: False)

    def offer(self) -> SaslMechanisms:
        return SaslMechanisms(Array(map(Symbol, MECHANISMS)))

    def judge(self, init: SaslInit) -> SaslOutcome:
        if init.mechanism == PLAIN:
            is_accepted = self._plain(init.initial_response or b"")
        else:
            is_accepted = init.mechanism in MECHANISMS
        return SaslOutcome(OK, WELCOME) if is_accepted else SaslOutcome(AUTH_FAILED)

    def _plain(self, response: bytes) -> bool:
        parts = response.split(b"\x00")
        if len(parts) != 3:
            return False
        try:
            return self.check_plain(parts[1].decode(), parts[2].decode())
        except UnicodeDecodeError:
            return False
