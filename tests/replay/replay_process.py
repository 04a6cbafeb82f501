"""A replay in a process of its own, to be killed: `python -m tests.replay.replay_process '{"directory": …}'`.

It prints its run's id once there is one, and its receipt at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.replay import driver, progress
from sbpair.replay.run import ReplayOptions, ReplayRequest
from tests.replay.world import NAMESPACE, OTHER, VARIABLES

BEGAN = time.monotonic()


def main(given: dict[str, Any]) -> None:
    primary, secondary = (endpoint_from_connection_string(os.environ[name]) for name in VARIABLES)
    pair = Pair("orders", replace(primary, name=NAMESPACE), replace(secondary, name=OTHER))
    directory = Path(given["directory"])
    request = ReplayRequest(
        pair, str(directory / "archive"), VARIABLES, directory / "state", **given.get("request", {})
    )
    if "resume" in given:
        result = driver.resume_run(request, given["resume"], tell)
    else:
        result = driver.start_run(request, ReplayOptions(**given["options"]), given["queues"], 4, tell)
    print("receipt", json.dumps(result.document()), flush=True)  # noqa: T201


def tell(event: progress.Event) -> None:
    print("event", f"{time.monotonic() - BEGAN:.1f}", event, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
