"""The gateways that run on this machine: a private file of each, which its process has locked until it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

from sbpair.errors import SbpairError
from sbpair.operating_system.files import user_directory
from sbpair.runs.database import make_directory, now_ms
from sbpair.runs.file_lease import Lock, is_locked

DIRECTORY: Final = ".gateways"
"""Beside the state directories of pairs, whose names begin with a letter or a digit."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway of this user."""

    pair: Annotated[str, "Name of its pair"]
    port: Annotated[int, "Port on 127.0.0.1 and [::1]"]
    process: Annotated[int, "Id of its process"]
    started_ms: Annotated[int, "When it started, in ms since 1970"]
    key_file: Annotated[str, "File of its key"]


@contextmanager
def recorded(pair: str, port: int, key_file: Path, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Record a gateway of this process until the end of the block. Raises StateRefused, MachineLacks."""
    directory = user_directory("state", environ)[0] / DIRECTORY
    make_directory(directory)
    found = RunningGateway(pair, port, os.getpid(), now_ms(), str(key_file))
    path = directory / f"{found.process}-{port}"
    with Lock(path, json.dumps(asdict(found))):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running_gateways(environ: Mapping[str, str] = os.environ) -> tuple[RunningGateway, ...]:
    """Return the gateways of this user that run now. Removes the records of processes that were killed."""
    found = []
    with suppress(OSError, RuntimeError):
        for path in sorted((user_directory("state", environ)[0] / DIRECTORY).iterdir()):
            with suppress(OSError, SbpairError, ValueError, TypeError):
                if is_locked(path):
                    found.append(RunningGateway(**json.loads(path.read_text())))
                else:
                    path.unlink()
    return tuple(found)
