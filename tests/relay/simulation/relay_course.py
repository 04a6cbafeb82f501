"""The record of a schedule, and the judgement of it: each request executed, answered, refused or in doubt, and how."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sbpair.model.pair import Side
from sbpair.relay.relay_listener import CLOSE_SECONDS
from tests.faults.simulation.harness import Record
from tests.relay.simulation.relay_plan import PlannedRequest, RelayPlan

ANSWERED, IN_DOUBT, FAILED, REFUSED = "answered", "in doubt", "both failed", "refused"
BY_LISTENER = "answered by the listener itself"
"""The answer of a listener that did not ask its handler, or whose handler failed."""


@dataclass(frozen=True)
class RequestOutcome:
    """The end of a request, as its client saw it. `doubtful` are the sides that may have executed it."""

    kind: str
    side: Side | None = None
    doubtful: tuple[str, ...] = ()


class RelayCourse(Record):
    """All that has happened. `now` returns the seconds since the beginning."""

    def __init__(self, plan: RelayPlan, now: Callable[[], float]) -> None:
        super().__init__(lambda: f"{now():.6f}")
        self.plan = plan
        self.executions: dict[int, list[Side]] = {number: [] for number in plan.all_requests}
        self.outcomes: dict[int, RequestOutcome] = {}
        self.sockets: Counter[str] = Counter()

    def executed(self, number: int, side: Side, by: str) -> None:
        self.executions[number].append(side)
        self.tell(f"request {number} is executed by {by} on the {side}")

    def ended(self, number: int, outcome: RequestOutcome) -> None:
        self.outcomes[number] = outcome
        self.tell(f"request {number} ends: {outcome}")

    def judge(self) -> None:
        """Accuse each request whose executions and end do not fit together."""
        for request in self.plan.all_requests.values():
            for fault in self._faults(request, self.executions[request.number], self.outcomes.get(request.number)):
                self.accuse(f"request {request.number} ({request.method}, {self.outcomes.get(request.number)}) {fault}")

    def _faults(self, request: PlannedRequest, sides: list[Side], outcome: RequestOutcome | None) -> Iterator[str]:
        if outcome is None:
            yield "did not end"
            return
        if len(sides) > 1 and not request.may_repeat:
            yield f"was executed {len(sides)} times"
        if outcome.kind == ANSWERED and outcome.side not in sides:
            yield "was answered, and not executed by that side"
        if outcome.kind in (REFUSED, FAILED) and (unnamed := set(sides) - set(outcome.doubtful)):
            yield f"was executed on the {', the '.join(sorted(unnamed))}, which is not named as in doubt"
        is_lost = outcome.kind == IN_DOUBT or outcome.doubtful or (sides and outcome.kind != ANSWERED)
        if self.plan.is_gentle and is_lost and not request.timeout and request.seconds < CLOSE_SECONDS / 2:
            yield "lost its answer although no fault takes one"
