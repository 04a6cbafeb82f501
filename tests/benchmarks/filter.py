"""The cost of a filter that passes one message in a hundred, beside a receive and a release of all messages.

python -m tests.benchmarks.filter [--messages SMALL LARGE] [--rounds N] [--output json]

`loop` receives and releases with the same client and nothing else, and `none` is a syphon whose filter is false for
all messages without reading them. A cost is a slope of CPU seconds between two sizes, of the process that moves.
"""

import sys
from functools import partial
from typing import Any

from sbpair.amqp.message import APPLICATION_PROPERTIES, Sections, encode_map
from sbpair.azure.atom import open_atom
from sbpair.backlog import Aliases, write_aliases
from sbpair.model.pair import Endpoint
from tests.benchmarks.engines import SYPHON, moved
from tests.benchmarks.figures import Run, emit, interleaved, parser, ratio, summary
from tests.benchmarks.stranded import DAY_TICKS, DESTINATIONS, OWN, Stranded, backlog_queues, destination, session_id

PASSED_EVERY = 100
FILTERS = {
    "property": "order_id LIKE '%00'",
    "several": "order_id LIKE '%00' AND customer = 'fabrikam' AND sys.Size > 100 AND age < '1d'",
    "none": "1 = 2",
}
"""`property` reads an application property that is another one in each message."""


class Numbered(Stranded):
    """Messages with their number as a property, of which one in PASSED_EVERY is moved, or none."""

    passed_every: int | None = PASSED_EVERY

    def sections(self, number: int) -> Sections:
        found = super().sections(number)
        aliases = Aliases(destination(number), session_id(number), DAY_TICKS, self.scheduled_at(number))
        own = {"order_id": f"{number:09d}", **OWN, **write_aliases(aliases)}
        found.application_properties = encode_map(APPLICATION_PROPERTIES, own)
        return found

    async def check(self, primary: Endpoint, secondary: Endpoint) -> float:
        """Count the messages on both sides. Raises RuntimeError if one is missing."""
        passed = 0 if self.passed_every is None else len(range(0, self.count, self.passed_every))
        async with open_atom(secondary) as control:
            left = sum([(await control.counts(queue)).active for queue in backlog_queues()])
        async with open_atom(primary) as control:
            arrived = sum([(await control.counts(destination(number))).total for number in range(DESTINATIONS)])
        if (left, arrived) != (self.count - passed, passed):
            raise RuntimeError(f"{left} of {self.count} messages are left, and {arrived} arrived")
        return 0.0


class Untouched(Numbered):
    passed_every = None


def measure(way: str, count: int) -> Run:
    if way == "loop":
        loop = [sys.executable, "-m", "tests.benchmarks.release_loop", str(count), *backlog_queues()]
        return moved((loop, {}), count, kind=Untouched)
    words = [*SYPHON, "--where", FILTERS[way], "--max-skipped", str(count)]
    return moved((words, {}), count, kind=Untouched if way == "none" else Numbered)


def document(sizes: list[int], number: int) -> dict[str, Any]:
    ways = {way: partial(measure, way) for way in ("loop", *FILTERS)}
    rounds = interleaved(number, sizes, ways)
    figures = {way: summary(each) for way, each in rounds.items()}
    for each in figures.values():
        del each["msg_per_s"]
    compared = ((way, to) for to in ("loop", "none") for way in FILTERS if way != to)
    return {"ways": figures, "ratios": {f"{way}_to_{to}": ratio(rounds[way], rounds[to]) for way, to in compared}}


def main() -> None:
    options = parser(__doc__, messages=(10_000, 50_000), rounds=3).parse_args()
    emit(options, document(options.messages, options.rounds))


if __name__ == "__main__":
    main()
