"""The errors of sbpair, with their exit codes.

    SbpairError                     1
    ├── UsageError                  2  the command line or the configuration is wrong
    │   ├── ConnectionStringError   2
    │   ├── NameInvalid             2  a name that Service Bus rejects
    │   └── EntityMissing           2  a named entity does not exist
    ├── Unsafe                      4  refused: it could lose or duplicate messages
    │   ├── LeaseHeld               4  another mover is running on this pair
    │   ├── LeaseLost               4  the lease was lost while messages were being moved
    │   ├── PrimaryLost             4  the primary is declared lost, and nothing is sent to it
    │   └── StateRefused            4  the state is of another pair or newer version, or broken
    ├── AccessError                 5
    │   ├── NotAuthenticated        5  wrong key, expired token
    │   ├── NotAuthorized           5  a claim (Send, Listen, Manage) is missing
    │   │   ├── KeyOfOthers         5  the keys are those of other entities
    │   │   └── KeysDisabled        5  the namespace accepts no keys
    │   └── NetworkRefused          5  a proxy or a firewall on the way refuses
    │       └── FirewallRefused     5  network rules of the namespace: also Unavailable, so retriable
    ├── Unavailable                 6  retriable
    │   ├── Unreachable             6  no connection, or it broke
    │   │   ├── Silent              6  no answer to the first request
    │   │   ├── TokenExpired        6  it ended with its token; the next connection has a new one
    │   │   └── DisabledEntity      6  the entity is disabled, until its status changes
    │   ├── TimedOut                6
    │   ├── InDoubt                 6  sent, but no answer came: it may or may not have happened
    │   ├── Throttled               6  the service requests a slower rate
    │   ├── QuotaExceeded           6  the entity is full: receivers may free space
    │   ├── ConnectionFaulted       6  one side of a pair closed, and the other was closed with it
    │   ├── NoToken                 6  the identity provider is away, and no token is valid
    │   └── BothFailed              6  neither namespace of a pair could act
    ├── ServiceRefused              3  the service refused for good, with a condition
    │   ├── NameTaken               3  an entity of another kind has the name
    │   ├── PartitionsWanted        3  the namespace is partitioned, and its entities must be too
    │   ├── MessageLockLost         3  a settlement came too late: the message will be delivered again
    │   ├── SessionLocked           3  another receiver holds the session
    │   ├── SessionLockLost         3  the session is no longer held by this receiver
    │   ├── UnreadableMessage       3  a delivered message cannot be decoded
    │   └── RelayRejected           3  a relay listener rejects a WebSocket
    ├── SkipLimitReached            3  as many messages as permitted are skipped and kept locked
    ├── DestinationsMissing         3  messages are for queues or topics that do not exist
    ├── WouldDiscard                3  topics would discard more messages than permitted
    ├── JobCancelled                3  Spark's job was cancelled, from its UI or by its interfaces
    ├── RampStopped                 3  dead letters of the destination grew after a step of a ramp
    ├── ProtocolError               6  bytes that violate AMQP 1.0
    └── MachineLacks                7  this machine lacks something: a free port, Java, disk, a permission
        ├── PortInUse               7
        └── Exhausted               7  no open file, memory or thread is left: also Unavailable, so retriable

`message` describes the error in one line, `hint` the remedy in another. Neither holds a secret. `retriable` is whether
a retry may succeed. Nothing of sbpair is imported here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of each command: part of the contract."""

    DONE = 0
    BUG = 1
    USAGE = 2
    PARTIAL_OR_FINDINGS = 3
    UNSAFE = 4
    ACCESS = 5
    UNAVAILABLE = 6
    MACHINE = 7
    INTERRUPTED = 130
    # What a shell reports for a program that SIGPIPE ended, as `| head` does.
    PIPE_CLOSED = 141


class SbpairError(Exception):
    """The root: `except SbpairError` catches every expected error of this package."""

    exit_code: int = ExitCode.BUG
    retriable: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SbpairError):
    """`excerpt` are lines that show where the mistake is, or the usage; `others` the other errors of the same input."""

    exit_code = ExitCode.USAGE
    excerpt: tuple[str, ...] = ()
    others: "tuple[UsageError, ...]" = ()


@contextmanager
def noting(found: "list[UsageError]") -> Iterator[None]:
    """Note the errors of a part of an input, for `raise_all` after the others."""
    try:
        yield
    except UsageError as error:
        found += [error, *error.others]


def raise_all(errors: "Iterable[UsageError]") -> None:
    """Raise the first error with the others, if there are any."""
    for first, *others in [found] if (found := list(errors)) else []:
        first.others = tuple(others)
        raise first


class ConnectionStringError(UsageError):
    """An invalid connection string. The message never repeats it."""


class NameInvalid(UsageError):
    """A queue, pair or namespace name that Service Bus, or sbpair, rejects."""


class EntityMissing(UsageError):
    """A named entity does not exist, in the namespace of this name where that is known."""

    def __init__(self, message: str, *, entity: str = "", namespace: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.entity = entity
        self.namespace = namespace


class Unsafe(SbpairError):
    exit_code = ExitCode.UNSAFE


class LeaseHeld(Unsafe):
    """Another process is moving messages of the pair, on this machine or with the same lease on another one."""


class LeaseLost(Unsafe):
    """This process lost the lease: another one may be moving messages of the pair."""


class PrimaryLost(Unsafe):
    """The primary is declared lost, and nothing is sent to it."""


class StateRefused(Unsafe):
    """The state on disk is unusable: of another pair, of a newer version, or broken."""


class AccessError(SbpairError):
    exit_code = ExitCode.ACCESS


class NotAuthenticated(AccessError):
    """The service rejects the key or the token."""


class NotAuthorized(AccessError):
    """The key or the token is valid, but lacks a claim: Send, Listen or Manage."""


class KeyOfOthers(NotAuthorized):
    """The keys are those of other entities, as their connection strings say."""


class KeysDisabled(NotAuthorized):
    """The namespace accepts no keys and no signatures: local authentication is disabled."""


class NetworkRefused(AccessError):
    """A proxy refuses its user, or a proxy or a firewall the namespace, which was not reached."""


class Unavailable(SbpairError):
    """`retry_after_seconds` is the delay that the service requested, if any.

    `side` is the namespace of a pair that is not available, primary or secondary, if known.
    """

    exit_code = ExitCode.UNAVAILABLE
    retriable = True
    retry_after_seconds: float | None = None
    side: str | None = None


class FirewallRefused(NetworkRefused, Unavailable):
    """No network rule of the namespace admits this machine. One may be added, so a watch waits."""


class Unreachable(Unavailable):
    """No connection, or it broke."""


class Silent(Unreachable):
    """No answer came to a first request. Commands that end do not repeat it: a namespace that is up answers."""


class TokenExpired(Unreachable):
    """A connection or link ended with its token. The next one has a new token, or shows that there is none."""


class DisabledEntity(Unreachable):
    """The entity is disabled: an administrator, not an outage, is the reason."""


class TimedOut(Unavailable):
    """The peer did not answer in time."""


class NoToken(Unavailable):
    """The identity provider does not answer, and no token is valid. One that refuses is NotAuthenticated."""


class InDoubt(Unavailable):
    """A request was sent, but no answer came before the connection or the time ended."""


class Throttled(Unavailable):
    """The service is busy, or requests a slower rate (SubCode 50009, 50004)."""


class QuotaExceeded(Unavailable):
    """The entity is full. Receivers may free space."""


class ConnectionFaulted(Unavailable):
    """One side of a pair failed, and the other was closed with it: neither is left half open."""


class BothFailed(Unavailable):
    """Neither namespace of a pair could act. `reasons` are the errors by side.

    `in_doubt` are the sides that may have acted: no answer came from there.
    """

    def __init__(
        self,
        message: str,
        *,
        reasons: dict[str, Exception] | None = None,
        in_doubt: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons or {}
        self.in_doubt = in_doubt


class ServiceRefused(SbpairError):
    """The service refused an operation for good; a retry cannot help.

    `condition` is the AMQP error condition or HTTP SubCode from the service.
    """

    exit_code = ExitCode.PARTIAL_OR_FINDINGS

    def __init__(self, message: str, *, condition: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.condition = condition


class PartitionsWanted(ServiceRefused):
    """A partitioned Premium namespace refuses an entity without partitions."""


class NameTaken(ServiceRefused):
    """An entity of another kind has the name, such as a topic that of a queue."""


class MessageLockLost(ServiceRefused):
    """The lock expired before the settlement arrived: the message will be delivered again."""


class SessionLocked(ServiceRefused):
    """Another receiver holds the session."""


class SessionLockLost(ServiceRefused):
    """The session's lock expired or was taken away: another receiver may hold it."""


class UnreadableMessage(ServiceRefused):
    """A message that cannot be decoded, however often it is received."""


class RelayRejected(ServiceRefused):
    """A relay listener rejects a WebSocket, with `status` and `reason`; 400 if it named none."""

    def __init__(self, message: str, *, status: int = 400, reason: str = "", hint: str = "") -> None:
        super().__init__(message, condition=str(status), hint=hint)
        self.status = status
        self.reason = reason


class SkipLimitReached(SbpairError):
    """A move keeps as many messages locked as permitted, that its filter does not choose."""

    exit_code = ExitCode.PARTIAL_OR_FINDINGS


class DestinationsMissing(SbpairError):
    """Messages are for queues or topics that do not exist, such as `entity`: nothing was sent."""

    exit_code = ExitCode.PARTIAL_OR_FINDINGS

    def __init__(self, message: str, *, entity: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.entity = entity


class WouldDiscard(SbpairError):
    """Messages were not sent since no subscription of their topic takes them, and it would discard them."""

    exit_code = ExitCode.PARTIAL_OR_FINDINGS


class JobCancelled(SbpairError):
    """Spark's job was cancelled by a person or a program: the run is to be resumed."""

    exit_code = ExitCode.PARTIAL_OR_FINDINGS


class RampStopped(SbpairError):
    """Moved messages came back as dead letters after a step of a ramp, or others came: nothing more is moved."""

    exit_code = ExitCode.PARTIAL_OR_FINDINGS


class ProtocolError(SbpairError):
    """Bytes that violate AMQP 1.0. `condition` is AMQP's name for the violation."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, message: str, *, condition: str = "amqp:decode-error", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.condition = condition


class MachineLacks(SbpairError):
    exit_code = ExitCode.MACHINE


class PortInUse(MachineLacks):
    """Another process uses the port."""


class Exhausted(MachineLacks, Unavailable):
    """This machine has run out of open files, memory or threads. No namespace is to blame."""


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a TaskGroup, or of one within it, instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group


def nearest_hint(wrong: str, known: Iterable[str], otherwise: str) -> str:
    """Return the hint for an unknown name: the one of the known names that is like it, or else another hint."""
    near = nearest(wrong, known)
    return f"did you mean {near[0]}?" if near else otherwise


def nearest(wrong: str, known: Iterable[str], likeness: float = 0.6) -> list[str]:
    """Return the known names that are like another one, in any case: the likest first; all for a `likeness` of 0."""
    import difflib  # an error is rare

    names: dict[str, list[str]] = {}
    for each in known:
        names.setdefault(each.lower(), []).append(each)
    near = difflib.get_close_matches(wrong.lower(), names, len(names) or 1, likeness)
    return [each for key in near for each in sorted(names[key])]
