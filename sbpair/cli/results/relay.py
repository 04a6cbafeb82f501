"""Results of `sbpair relay`."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from sbpair.errors import SbpairError
from sbpair.model.document import TIME, UNLESS_NONE, Failing, document
from sbpair.model.pair import Side
from sbpair.model.queues import Difference
from sbpair.relay.listener_counts import SideListeners


@document("sbpair/relay-status/1")
class RelayStatus:
    """The listeners of a relay. --watch prints one line for each reading."""

    time: Annotated[str, "Time of the reading, in UTC", TIME]
    relay: Annotated[str, "Name of the relay"]
    sides: Annotated[tuple[SideListeners, ...], "Both sides"]


@document("sbpair/relay-request/1")
class ServedRequest:
    """A request or WebSocket that sbpair relay listen has served, one on each line."""

    time: Annotated[str, "Time of its end, in UTC", TIME]
    side: Annotated[Side, "Side of the relay"]
    method: Annotated[str, "Method; WEBSOCKET for a WebSocket"]
    path: Annotated[str, "Path of the sender, without the endpoint's and without the query"]
    status: Annotated[int, "Status of the answer; 101 for a WebSocket, 0 for none"]
    seconds: Annotated[float, "Duration"]
    problem: Annotated[str, "Why there is no answer of the server, or not all of it; may be empty"]


@dataclass(slots=True)
class ProvisionedSide(Failing):
    """The outcome of one side."""

    side: Annotated[Side, "Side of the relay"]
    namespace: Annotated[str, "Name of the namespace"]
    path: Annotated[str, "Path of the hybrid connection"]
    outcome: Annotated[Literal["created", "existing", "drifted", "would_create", "failed"], "Outcome"] = "failed"
    differences: Annotated[tuple[Difference, ...], "Properties that differ from the expected description"] = ()
    error: SbpairError | None = None


@document("sbpair/relay-provision/1")
class RelayProvisionResult:
    """The hybrid connections of a relay, created or compared."""

    relay: Annotated[str, "Name of the relay"]
    dry_run: Annotated[bool, "Whether nothing was created"]
    sides: Annotated[tuple[ProvisionedSide, ...], "Both sides"]


class HttpHeader(NamedTuple):
    """A header."""

    name: Annotated[str, "Name"]
    value: Annotated[str, "Value"]


@document("sbpair/relay-send/1")
class AnsweredRequest:
    """The answer to a request over a relay."""

    status: Annotated[int, "Status"]
    reason: Annotated[str, "Reason phrase"]
    side: Annotated[Side, "Side of the relay"]
    headers: Annotated[tuple[HttpHeader, ...], "Headers"]
    body: Annotated[str | None, "Body, if it is UTF-8", UNLESS_NONE]
    body_base64: Annotated[str | None, "Body that is not UTF-8, in base64", UNLESS_NONE]
