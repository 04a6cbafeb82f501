"""Every error that sbpair raises on purpose, and the exit code that each one means.

    SbpairError                     1
    ├── UsageError                  2  the command line or the configuration is wrong
    │   ├── ConnectionStringError   2
    │   ├── NameInvalid             2  a name that Service Bus would refuse
    │   └── EntityMissing           2  (condition) an entity that was named does not exist
    ├── Unsafe                      4  refused: doing it could lose or double messages
    │   ├── LeaseHeld               4  another mover is at work on this pair
    │   ├── LeaseLost               4  the lease was taken away while messages were being moved
    │   └── StateRefused            4  the state is of another pair or version, or broken
    ├── AccessError                 5
    │   ├── NotAuthenticated        5  wrong key, expired token
    │   └── NotAuthorized           5  a claim (Send, Listen, Manage) is missing
    ├── Unavailable                 6  retriable
    │   ├── Unreachable             6  no connection, or it broke
    │   ├── TimedOut                6
    │   ├── InDoubt                 6  asked, and no answer came: it may or may not have happened
    │   ├── Throttled               6  the service asks to slow down
    │   ├── QuotaExceeded           6  the entity is full: room may come back
    │   ├── ConnectionFaulted       6  one side of a pair closed and the other had to be closed too
    │   └── BothFailed              6  neither namespace did what either of them could have done
    ├── ServiceRefused              3  the service said no for good, with a condition
    │   ├── NameTaken               3  an entity of another kind has the name
    │   ├── PartitionsWanted        3  the whole namespace is partitioned, and so must be what is made in it
    │   ├── MessageLockLost         3  a settlement came too late; the message will be delivered again
    │   ├── SessionLocked           3  another receiver has the session
    │   ├── SessionLockLost         3  a session is not this receiver's any more
    │   └── UnreadableMessage       3  azure-servicebus cannot decode a message that the service delivers
    ├── ProtocolError               6  bytes that are not the AMQP 1.0 that they claim to be
    └── MachineLacks                7  this machine lacks something: a free port, Java, disk, a permission
        └── PortInUse               7

`message` is one line that says what happened, `hint` one line that says what to do. Neither ever holds a
secret. `retriable` says whether the same thing may work a little later. Nothing of sbpair is imported here.
"""

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
    """The root: `except SbpairError` catches everything that this package raises on purpose."""

    exit_code: int = ExitCode.BUG
    retriable: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SbpairError):
    exit_code = ExitCode.USAGE


class ConnectionStringError(UsageError):
    """A connection string that cannot be read. The message never repeats the string."""


class NameInvalid(UsageError):
    """A queue, pair or namespace name that Service Bus, or this tool, does not allow."""


class EntityMissing(UsageError):
    """An entity that was asked for by name does not exist."""

    def __init__(self, message: str, *, entity: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.entity = entity


class Unsafe(SbpairError):
    exit_code = ExitCode.UNSAFE


class LeaseHeld(Unsafe):
    """Another process, on this machine or with the same lease on another one, is moving messages of the same pair."""


class LeaseLost(Unsafe):
    """The lease is no longer this process's: another one may be moving messages of the same pair."""


class StateRefused(Unsafe):
    """The state on disk cannot be relied upon: it is another pair's, a newer version's, or broken."""


class AccessError(SbpairError):
    exit_code = ExitCode.ACCESS


class NotAuthenticated(AccessError):
    """The service does not accept the key or the token."""


class NotAuthorized(AccessError):
    """The key or the token is good, but lacks a claim: Send, Listen or Manage."""


class Unavailable(SbpairError):
    """`retry_after_seconds` is how long the service wants to be left alone, where it said so."""

    exit_code = ExitCode.UNAVAILABLE
    retriable = True
    retry_after_seconds: float | None = None


class Unreachable(Unavailable):
    """No connection could be made, or the one that there was is gone."""


class TimedOut(Unavailable):
    """The peer did not answer in time."""


class InDoubt(Unavailable):
    """Something left for the peer, and the connection or the patience ended before its answer came."""


class Throttled(Unavailable):
    """The service is busy, or asks this client to slow down (SubCode 50009, 50004)."""


class QuotaExceeded(Unavailable):
    """The entity is full. Room may come back when its receivers catch up."""


class ConnectionFaulted(Unavailable):
    """One side of a pair is gone, and the other was closed with it: neither is left half open."""


class BothFailed(Unavailable):
    """Neither namespace of a pair did what either could have done. `reasons` is, by side, what each of them raised.

    `in_doubt` are the sides that may have done it all the same: no answer came from there.
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
    """The service refused one thing for good; trying the same again cannot help.

    `condition` is the AMQP error condition or HTTP SubCode, as the service gave it.
    """

    exit_code = ExitCode.PARTIAL_OR_FINDINGS

    def __init__(self, message: str, *, condition: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.condition = condition


class PartitionsWanted(ServiceRefused):
    """A Premium namespace that is partitioned as a whole refuses what does not ask for partitions too."""


class NameTaken(ServiceRefused):
    """Something of another kind has the name, such as a topic that of a queue."""


class MessageLockLost(ServiceRefused):
    """The lock ran out before the settlement arrived: the message will be delivered again."""


class SessionLocked(ServiceRefused):
    """The session that was asked for is another receiver's."""


class SessionLockLost(ServiceRefused):
    """The lock of a session ran out, or was taken away: somebody else may have the session."""


class UnreadableMessage(ServiceRefused):
    """A message that azure-servicebus cannot decode, however often it is received."""


class ProtocolError(SbpairError):
    """Bytes that are not the AMQP 1.0 that they claim to be. `condition` is what AMQP calls it."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, message: str, *, condition: str = "amqp:decode-error", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.condition = condition


class MachineLacks(SbpairError):
    exit_code = ExitCode.MACHINE


class PortInUse(MachineLacks):
    """The port is taken by another process."""
