"""Running checks: those in Python at once on one loop, those in JavaScript in a process of Node."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.bench import Bench
from tests.conformance.registry import JAVASCRIPT_CHECKS, Check
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
