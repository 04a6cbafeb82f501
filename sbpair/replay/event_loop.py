"""An event loop for a coroutine in a Spark worker."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_in_worker(task: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, in a worker that does nothing else."""
    # A mover's objects die by reference count: looking for cycles after every 700 objects cost a tenth of its time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    return asyncio.run(task)
