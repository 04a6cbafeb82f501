"""Fixtures of the relay tests: an emulated pair of endpoints."""

import pytest

from tests.kit.async_tests import InLoop
from tests.relay.relay_pairs import open_pair


@pytest.fixture
def bench() -> InLoop:
    return InLoop(open_pair)
