"""The state of a pair, open."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.runs.database import RunDatabase
from tests.runs.states import PAIR


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunDatabase]:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        yield state
