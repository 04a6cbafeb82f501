"""A replay in a process of its own, to be killed: `python -m tests.replay.replay_process '{"directory": …}'`.

It prints each event of its run that is new, soon after it happens, and its receipt at the end.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbpair.replay import driver, progress
from sbpair.replay.delivery import ReplayDelivery
from sbpair.replay.run_description import ReplayMode, ReplayOptions, ReplayRequest
from tests.replay.tasks import run_tasks_here
from tests.replay.world import pair_of

BEGAN = time.monotonic()
POLL_SECONDS = 0.02  # how often the files are counted


def main(given: dict[str, Any]) -> None:
    directory, pair = Path(given["directory"]), pair_of(os.environ)
    to = pair.secondary if given.get("to") else None
    if given.get("local"):
        run_tasks_here(pytest.MonkeyPatch())
    request = ReplayRequest(pair, str(directory / "archive"), directory / "state", to=to, **given.get("request", {}))
    if "resume" in given:
        wanted = {"delivery": ReplayDelivery(**given["delivery"])} if "delivery" in given else {}
        result = driver.resume_run(request, given["resume"], tell, **wanted)
    else:
        options = {**given["options"], "mode": ReplayMode(given["options"].get("mode", "archive"))}
        result = driver.start_run(request, ReplayOptions(**options), given["queues"], tell, name=given.get("name"))
    print("receipt", json.dumps(result.document()), flush=True)  # noqa: T201


_last: list[progress.Event] = []


def tell(event: progress.Event) -> None:
    if event not in _last:
        _last[:] = [event]
        print("event", json.dumps({"at": round(time.monotonic() - BEGAN, 1), **asdict(event)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    driver.run_action = partial(progress.run_action, poll_seconds=POLL_SECONDS)
    main(json.loads(sys.argv[1]))
