"""Running checks: those in Python at once on one loop, of sbpair's client one by one on each of its entities.

Those in JavaScript run in a process of Node.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sbpair.amqp_client.client import connect
from sbpair.doctor.assumption_checks import CHECKS
from sbpair.doctor.assumptions import ENTITIES, AssumptionTrial
from sbpair.doctor.live_checks import run_live
from sbpair.errors import SbpairError
from sbpair.management.temporary_queues import open_temporary_queues
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.report import Outcome as State
from tests.conformance.bench import WAIT_SECONDS, Bench
from tests.conformance.registry import ASSUMPTION_CHECKS, JAVASCRIPT_CHECKS, Check
from tests.conformance.report import Outcome
from tests.integration.node import install

AT_ONCE = 12
CHECK_SECONDS = 60
NODE_SECONDS = 240
SCRIPT = Path(__file__).parents[1] / "integration" / "node" / "checks.mjs"


async def run_python(bench: Bench, checks: Sequence[Check]) -> list[Outcome]:
    """Run the checks, several at once, and return their outcomes in order."""
    free = asyncio.Semaphore(AT_ONCE)

    async def run(check: Check) -> Outcome:
        assert check.run is not None
        async with free:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await check.run(bench)
            except TimeoutError:
                return Outcome.of(check, f"not done within {CHECK_SECONDS} s")
            except Exception as error:  # noqa: BLE001  # whatever it is, the check has failed
                return Outcome.of(check, bench.service.redact(f"{type(error).__name__}: {error}"))
        return Outcome.of(check, None)

    return list(await asyncio.gather(*(run(check) for check in checks)))


async def run_assumptions(bench: Bench) -> list[Outcome]:
    """Run the checks of ASSUMPTIONS.md, those of management against the namespace itself."""
    texts = (bench.service.management_connection_string, bench.service.connection_string)
    managed, served = map(endpoint_from_connection_string, texts)
    tag, problems = bench.prefix.strip("-"), dict[str, str | None]()
    for item in await run_live({"primary": managed}, tag, seconds=WAIT_SECONDS):
        problems[item.name.rpartition(".")[2]] = None if item.outcome is State.OK else item.reason
    async with open_temporary_queues(managed, lambda *_: None) as queues, connect(served) as client:

        async def run(purpose: str) -> None:
            trial = AssumptionTrial(client, bench.name(), WAIT_SECONDS, asyncio.sleep)
            checks = [each for each in CHECKS.values() if each.queue == purpose]
            try:
                await queues.create(replace(ENTITIES[purpose], path=trial.path))
                for each in checks:
                    observed = await each.run(trial)
                    as_expected = observed == each.expected
                    problems[each.name] = None if as_expected else f"expected: {each.expected}; observed: {observed}"
            except SbpairError as error:
                problems.update({each.name: error.message for each in checks if each.name not in problems})

        await asyncio.gather(*map(run, ENTITIES))
    return [Outcome.of(check, problems.get(check.name, "not asked")) for check in ASSUMPTION_CHECKS]


async def run_javascript(bench: Bench) -> list[Outcome]:
    """Run the checks in Node. Raises install.NotHere if Node.js or its packages are not there."""
    node, modules = install.node(), await asyncio.to_thread(install.modules)
    service = bench.service
    environment = {
        "PATH": os.environ["PATH"],
        "MODULES": f"{modules}/",
        "PREFIX": bench.prefix,
        "PLAIN": service.connection_string,
        "TLS": service.management_connection_string,
        "INSECURE": "1" if service.plain else "",
        "CHECK_MS": str(CHECK_SECONDS * 1000),
    }
    process = await asyncio.create_subprocess_exec(
        node, str(SCRIPT), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(NODE_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
    found = {each["check"]: each["error"] for each in map(json.loads, out.decode().splitlines())}
    missing = service.redact(err.decode()[-500:]) or "it did not end"
    return [
        Outcome.of(check, None if (error := found.get(check.name, missing)) is None else service.redact(error))
        for check in JAVASCRIPT_CHECKS
    ]
