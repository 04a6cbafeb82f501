"""The cost of moving a backlog: by the syphon, by the loops that people write today, and by a relay that copies bytes.

python -m tests.benchmarks.syphon [--messages SMALL LARGE] [--engine NAME …] [--round-trip-ms MS] [--output json]

All take turns in each round. A cost is a slope between two sizes, so the start of a process is not part of it: CPU is
that of the process that moves, user and system. The primary counts messages a second, from the first to the last.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from tests.benchmarks.engines import ENGINES, NotHere, command, measure
from tests.benchmarks.figures import Rounds, emit, interleaved, parser, ratio, summary

DISTANT = "wire_distant"
"""The syphon with a round trip to both namespaces."""


def document(sizes: list[int], engines: list[str], number: int, round_trip_ms: float) -> dict[str, Any]:
    absent: dict[str, str] = {}
    if "node" in engines:
        try:
            command("node")
        except NotHere as error:
            absent["node"] = str(error)
    ways = {engine: partial(measure, engine) for engine in engines if engine not in absent}
    if "wire" in ways and round_trip_ms:
        ways[DISTANT] = partial(measure, "wire", round_trip_ms=round_trip_ms)
    rounds = interleaved(number, sizes, ways)
    measured = {way: summary(each) for way, each in rounds.items()}
    return {
        "round_trip_ms": round_trip_ms,
        "engines": measured | {engine: {"absent": why} for engine, why in absent.items()},
        "ratios": dict(_ratios(rounds)),
    }


def _ratios(rounds: dict[str, Rounds]) -> Iterable[tuple[str, dict[str, float] | None]]:
    compared = (("sdk_loop", "wire"), ("node", "wire"), ("wire", "relay"), ("wire", "relay_protocol"))
    for many, few in (("wire_websocket", "wire"), *compared):
        with suppress(KeyError):
            yield f"{many}_to_{few}", ratio(rounds[many], rounds[few])


def main() -> None:
    options_of = parser(__doc__, messages=(20_000, 100_000), rounds=3)
    options_of.add_argument("--engine", nargs="+", choices=ENGINES, default=list(ENGINES))
    options_of.add_argument("--round-trip-ms", type=float, default=10.0, help="0 leaves the distant run out")
    options = options_of.parse_args()
    emit(options, document(options.messages, options.engine, options.rounds, options.round_trip_ms))


if __name__ == "__main__":
    main()
