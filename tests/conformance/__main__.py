"""`python -m tests.conformance CONNECTION_STRING` checks any Service Bus, or emulator, with the official clients."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError

from tests.conformance import entity_checks, queue_checks, transaction_checks, wire_checks
from tests.conformance.bench import Bench, NotAConnectionString, Service
from tests.conformance.registry import AREAS, ASSUMPTIONS, JAVASCRIPT_CHECKS, PYTHON_CHECKS, SAMPLES
from tests.conformance.report import FORMATS, Outcome, failed, render
from tests.conformance.runs import run_assumptions, run_javascript, run_python
from tests.conformance.samples import run_samples
from tests.integration.node import install

VARIABLE = "SERVICEBUS_CONNECTION_STRING"
MANAGING_VARIABLE = "SERVICEBUS_MANAGEMENT_CONNECTION_STRING"
UNREACHABLE, FAILED, INTERRUPTED = 6, 3, 130
_GIVEN = (
    f"of a namespace, with Manage [default: ${VARIABLE}]; of a gateway, ${MANAGING_VARIABLE} is that of the namespace"
)
MODULES = (queue_checks, entity_checks, transaction_checks, wire_checks)
"""Their checks are registered when they are loaded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every check passes, 3 if one fails, 6 if the service cannot be reached, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("connection_string", nargs="?", help=_GIVEN)
    parser.add_argument("--output", choices=FORMATS, default="text")
    parser.add_argument(
        "--management", metavar="URL", type=_url, help="the URL of management requests, if it is another"
    )
    parser.add_argument("--area", choices=AREAS, action="append", help="check this area only; repeatable")
    parser.add_argument("--samples", action="store_true", help="run the published samples too: some minutes")
    options, more = parser.parse_known_args(arguments)
    if more:
        # Not repeated: it may be a second connection string.
        parser.error("too many arguments, or an unknown option")
    areas = options.area or AREAS
    if options.samples and SAMPLES not in areas:
        parser.error(f"--samples runs nothing without its area: add --area {SAMPLES}, or leave --area out")
    if options.area == [SAMPLES] and not options.samples:
        parser.error(f"--area {SAMPLES} checks nothing without --samples: add it")
    given = options.connection_string or os.environ.get(VARIABLE)
    if not given:
        parser.error(f"expected a connection string, as argument or in {VARIABLE}")
    try:
        service = Service.read(given, options.management, os.environ.get(MANAGING_VARIABLE))
    except NotAConnectionString as error:
        parser.error(str(error))
    try:
        outcomes = asyncio.run(_check(service, areas, samples=options.samples))
    except (AzureError, OSError) as error:
        sys.stderr.write(f"{service.management}: {service.redact(str(error))}\n")
        return UNREACHABLE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the entities of this run are removed\n")
        return INTERRUPTED
    sys.stdout.write(render(outcomes, options.output) + "\n")
    return FAILED if failed(outcomes) else 0


def _url(text: str) -> str:
    """Return the URL. Raises ArgumentTypeError without its text: it may be a connection string."""
    try:
        parts = urlsplit(text)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        complete = False
    if not complete:
        raise argparse.ArgumentTypeError("expected a URL such as http://localhost:5300")
    return text


async def _check(service: Service, areas: Sequence[str], *, samples: bool) -> list[Outcome]:
    async with Bench(service) as bench:
        # A service that cannot be reached fails here, once.
        await bench.admin.get_namespace_properties()
        running = [run_python(bench, [check for check in PYTHON_CHECKS if check.area in areas])]
        if ASSUMPTIONS in areas:
            running.append(run_assumptions(bench))
        if any(check.area in areas for check in JAVASCRIPT_CHECKS):
            running.append(_in_node(bench))
        outcomes = [outcome for group in await asyncio.gather(*running) for outcome in group]
        if samples:
            outcomes += await run_samples(bench)
    found = [outcome for outcome in outcomes if outcome.area in areas]
    return sorted(found, key=lambda outcome: AREAS.index(outcome.area))


async def _in_node(bench: Bench) -> list[Outcome]:
    try:
        return await run_javascript(bench)
    except install.NotHere as error:
        sys.stderr.write(f"JavaScript is not checked: {error}\n")
        return []


if __name__ == "__main__":
    sys.exit(main())
