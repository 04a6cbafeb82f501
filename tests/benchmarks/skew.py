"""The time of a replay of an uneven backlog beside that of an even one: 90 % in one queue, and 30 % in one session.

python -m tests.benchmarks.skew [--messages COUNT] [--rounds N] [--answer-ms N] [--output json] [OPTION OF REPLAY …]

With --answer-ms tasks wait for namespaces that answer later, as many of them on a machine as on a cluster.

`ratios` are medians of the seconds of a phase, and of all after Spark's start, over those of the even backlog.
"""

from functools import partial
from statistics import median
from typing import Any

from tests.benchmarks.figures import emit, interleaved, parser
from tests.benchmarks.replay import replayed
from tests.benchmarks.stranded import BATCH, QUEUES, Stranded

PHASES = ("drain", "send")


class OneQueue(Stranded):
    """A backlog with nine of ten messages in one queue."""

    def source(self, number: int) -> int:
        batch = number // BATCH
        return 0 if batch % 10 else 1 + batch // 10 % (QUEUES - 1)


class OneSession(Stranded):
    """A backlog with three of ten messages in one session."""

    def place(self, number: int) -> tuple[str, str | None]:
        return super().place(0 if number % 10 < 3 else number)


BACKLOGS: dict[str, type[Stranded]] = {"even": Stranded, "queue": OneQueue, "session": OneSession}


def seconds(run: dict[str, Any]) -> dict[str, float]:
    return {"all": run["seconds"]} | {name: run["phases"][name]["seconds"] for name in PHASES}


def ratios(details: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the time of each backlog over that of the even one, by phase."""
    times = {shape: [*map(seconds, runs)] for shape, runs in details.items()}
    medians = {shape: {name: median(run[name] for run in runs) for name in runs[0]} for shape, runs in times.items()}
    even = medians.pop("even")
    return {shape: {name: round(found[name] / even[name], 2) for name in even} for shape, found in medians.items()}


def main() -> None:
    options_of = parser(__doc__, rounds=3)
    options_of.add_argument("--messages", type=int, default=40_000)
    options_of.add_argument("--answer-ms", type=int, default=100)
    options, words = options_of.parse_known_args()
    details: dict[str, list[dict[str, Any]]] = {shape: [] for shape in BACKLOGS}
    ways = {
        shape: partial(replayed, "archive", words, details[shape], backlog=backlog, answer_ms=options.answer_ms)
        for shape, backlog in BACKLOGS.items()
    }
    interleaved(options.rounds, [options.messages], ways)
    emit(options, {"ratios": ratios(details), "runs": details})


if __name__ == "__main__":
    main()
