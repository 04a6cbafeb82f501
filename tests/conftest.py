"""Settings of every test: a state directory and loggers of its own, default signals, no time limit for an example."""

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.async_tests import pytest_collection_finish, pytest_pyfunc_call, pytest_runtest_logfinish
from tests.kit.command import loggers_kept

pytest_plugins = [
    "tests.kit.disks",
    "tests.kit.fixtures",
    "tests.kit.json_schemas",
    "tests.strict_amqp.recording",
]

__all__ = ["pytest_collection_finish", "pytest_pyfunc_call", "pytest_runtest_logfinish"]

# On a busy machine drawing an example may take long for no fault of the test.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# A shell ignores these signals for a command in the background, and commands that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of Spark first: they are the longest, and share one Java if one worker runs them."""
    items.sort(key=lambda item: item.get_closest_marker("java") is None)


@pytest.fixture(autouse=True)
def _loggers_of_its_own() -> Iterator[None]:
    with loggers_kept():
        for name in ("azure", "sbpair", "spark"):  # a fixture of a wider scope may have set a level
            logging.getLogger(name).setLevel(logging.NOTSET)
        yield


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts inherit it: none keeps its runs where those of whoever runs the tests are."""
    state = str(tmp_path_factory.mktemp("state"))
    monkeypatch.setenv("XDG_STATE_HOME", state)
    # Each test is a machine of its own to the movers in its process; those in other processes have other ports.
    monkeypatch.setattr("sbpair.runs.file_lease.MACHINE", state)
