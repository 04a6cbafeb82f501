"""First contact with a namespace: its time limits, and what to do if it cannot be reached or refuses the key.

One place for all clients: AMQP, the management side and azure-servicebus.
"""

from __future__ import annotations

import os
import re
import socket
import ssl

from sbpair.errors import (
    AccessError,
    EntityMissing,
    FirewallRefused,
    KeyOfOthers,
    KeysDisabled,
    NotAuthenticated,
    NotAuthorized,
    SbpairError,
    ServiceRefused,
    Silent,
    Unavailable,
    Unreachable,
)
from sbpair.model.namespace_clock import SYNCHRONISE
from sbpair.model.pair import Endpoint, Identity
from sbpair.model.signature import expired_at
from sbpair.operating_system.shortages import shortage_of

CONNECT_SECONDS = 7.0
"""Time limit of DNS, TCP, TLS and the opening of AMQP. A gateway that is up answers each at once."""

TUNNEL_SECONDS = 6.0
"""Time limit of a connection through a proxy: shorter, so that the error names the proxy."""

REPORT_SECONDS = 8.0
"""How long a first request waits in silence before a warning."""

FIRST_ANSWER_SECONDS = 12.0
"""Time limit of the first answer over a new connection, such as a sign-in. Later answers may take longer."""

DOCTOR_HINT = "; test each step with sbpair doctor"
REACH_HINT = f"check the address, the network and the firewall{DOCTOR_HINT}"
TRUST_HINT = "set ca_file, SBPAIR_PRIMARY_CA_FILE or SBPAIR_SECONDARY_CA_FILE to a file of certificates to trust"
TLS_HINT = f"{TRUST_HINT}, or check that the port speaks TLS{DOCTOR_HINT}"

CLAIM_HINT = "use a key, or a role, that has this claim"
FIREWALL_HINT = (
    "no network rule of the namespace admits this machine: add its address or network in the portal under Networking,"
    " Public access; the key is not to blame"
)
KEYS_DISABLED_HINT = (
    "the namespace accepts no keys: sign in with an identity, or enable Local Authentication in the portal's Overview"
)

_FIREWALL = re.compile("ip has been prevented", re.IGNORECASE)
_KEYS_DISABLED = re.compile("local ?auth|sas auth[a-z]* (has been|is) disabled", re.IGNORECASE)
_LACKS_CLAIM = re.compile("claim.*required", re.IGNORECASE)
_ERRNO = re.compile(r"Errno (\d+)")


class FirstAnswerTimeout(TimeoutError):
    """No answer came to the first requests of a transport."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(address, seconds)
        self.address, self.seconds = address, seconds


def key_hint(key_source: str, clock_difference: str = "") -> str:
    """Return the hint for a refused key or signature; `key_source` is the variable that it came from, "" if unknown.

    `clock_difference` is how the local clock differs, if that is known: then it is the likely cause.
    """
    if clock_difference:
        return f"{SYNCHRONISE}, and then check the key: {clock_difference}, and a signature lives an hour"
    if not key_source:
        return f"check the key and its name, or sign in again: the key may be wrong, the token expired{DOCTOR_HINT}"
    causes = "it may be wrong or regenerated, its signature may have expired, or this machine's clock may be wrong"
    return f"check the key's name and the key in {key_source}: {causes}{DOCTOR_HINT}"


def refused(message: str, text: str, hint: str) -> AccessError:
    """Return the error of an unauthorized request. `text` is the service's, which has one status for four causes.

    `hint` is that of a key or token that is not accepted.
    """
    if _FIREWALL.search(text):
        return FirewallRefused(message, hint=FIREWALL_HINT)
    if _KEYS_DISABLED.search(text):
        return KeysDisabled(message, hint=KEYS_DISABLED_HINT)
    if _LACKS_CLAIM.search(text):
        return NotAuthorized(message, hint=CLAIM_HINT)
    return NotAuthenticated(message, hint=hint)


def explain_refusal(error: SbpairError, endpoint: Endpoint) -> SbpairError:
    """Return the error; of a refused key, with its source, a wrong clock, and when its signature expired."""
    if isinstance(error, NotAuthenticated):
        source = "" if isinstance(endpoint.credential, Identity) else endpoint.key_source
        if source or endpoint.clock.difference():
            error.hint = key_hint(source, endpoint.clock.difference())
        if when := expired_at(endpoint.present, endpoint.clock.now()):
            message = f"{error.message}: the SharedAccessSignature expired at {when}"
            return NotAuthenticated(message, hint=f"put another one, or a key, into {source or 'its place'}")
    return error


def refused_link(endpoint: Endpoint, entity: str, message: str) -> SbpairError:
    """Return the error of a key that is refused for an entity: it is that of another one, or wrong."""
    if endpoint.may_sign_for(entity):
        return explain_refusal(NotAuthenticated(message, hint=key_hint("")), endpoint)
    what = f"the key in {endpoint.key_source or 'the connection string'} is for {endpoint.entity!r}"
    text = f"signing in to {endpoint.authority} for {entity!r}: {what}"
    return KeyOfOthers(text, hint=f"use a key of {endpoint.name}, or of that entity")


def is_accepted(error: SbpairError | None) -> bool:
    """Return whether a link with this outcome had a credential that the namespace knows, with or without the claim."""
    return error is None or isinstance(error, EntityMissing | ServiceRefused) or type(error) is NotAuthorized


def unreachable(name: str, address: str, why: BaseException | float, *, doing: str = "") -> Unavailable:
    """Return the error of a namespace that cannot be reached: Silent if nothing came from it in time.

    It is Exhausted where this machine could not even try.

    `why` is the error of the socket, or the seconds without an answer. `doing` comes first in the message.
    """
    place = f"{doing}: {name}" if doing else name
    if isinstance(why, (int, float)):
        return Silent(f"{place} cannot be reached at {address}: no answer within {why:g} s", hint=REACH_HINT)
    if (lack := shortage_of(why, place)) is not None:
        return lack
    kind = Silent if isinstance(why, TimeoutError) else Unreachable
    return kind(
        f"{place} cannot be reached at {address}: {cause_of(why)}",
        hint=TLS_HINT if isinstance(_socket_error(why), ssl.SSLError) else REACH_HINT,
    )


def cause_of(error: BaseException) -> str:
    """Return why a connection failed, such as "connection refused"."""
    inner = _socket_error(error)
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({inner.verify_message})"
    if isinstance(inner, ssl.SSLError):
        return f"it does not speak TLS ({inner.reason or type(inner).__name__})"
    if isinstance(inner, (socket.gaierror, UnicodeError)):
        return "name not known"
    if isinstance(inner, TimeoutError):
        return "timed out"
    # For a name with several addresses, asyncio joins the texts of all errors.
    number = getattr(inner, "errno", None) or int((_ERRNO.search(str(inner)) or "00")[1])
    return os.strerror(number).lower() if number else str(inner) or type(inner).__name__


def _socket_error(error: BaseException) -> BaseException:
    """Return the error that aiohttp wraps, if it does."""
    return getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
