"""The pytest plugin: fixtures for emulated namespaces, whose entities the mark `service_bus` declares.

Every run of pytest where sbpair is installed loads it. Invariant: it imports the emulator with the first fixture only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from sbpair.errors import SbpairError, UsageError

if TYPE_CHECKING:
    from sbpair.testing.emulator_thread import EmulatedNamespace, EmulatedPair

MARK = "service_bus"
NAMES = ("contoso", "contoso-dr")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(queues=[], topics={{}}, hybrid_connections=[], config=None): entities in the namespaces of the "
        "fixtures service_bus, service_bus_pair, service_bus_session and service_bus_pair_session",
    )


@pytest.fixture
def service_bus(request: pytest.FixtureRequest) -> Iterator[EmulatedNamespace]:
    """Start an emulated Service Bus namespace for one test."""
    with _namespaces(NAMES[:1], [request.node]) as [only]:
        yield only


@pytest.fixture
def service_bus_pair(request: pytest.FixtureRequest) -> Iterator[EmulatedPair]:
    """Start two emulated namespaces for one test, with the same entities."""
    from sbpair.testing.emulator_thread import EmulatedPair

    with _namespaces(NAMES, [request.node]) as both:
        yield EmulatedPair(*both)


@pytest.fixture(scope="session")
def service_bus_session(request: pytest.FixtureRequest) -> Iterator[EmulatedNamespace]:
    """Start a namespace for the whole session, with the entities of all tests that use it."""
    with _namespaces(NAMES[:1], _users(request)) as [only]:
        yield only


@pytest.fixture(scope="session")
def service_bus_pair_session(request: pytest.FixtureRequest) -> Iterator[EmulatedPair]:
    """Start two namespaces for the whole session, with the entities of all tests that use them."""
    from sbpair.testing.emulator_thread import EmulatedPair

    with _namespaces(NAMES, _users(request)) as both:
        yield EmulatedPair(*both)


def _users(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Return the tests of the session that use the requested fixture."""
    return [item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ())]


@contextmanager
def _namespaces(names: Sequence[str], users: Iterable[pytest.Item]) -> Iterator[list[EmulatedNamespace]]:
    from sbpair.testing.emulator_thread import EmulatorThread

    with EmulatorThread([(name, 0) for name in names]) as thread:
        found = [thread[name] for name in names]
        _declare(found, users)
        yield found


def _declare(namespaces: Sequence[EmulatedNamespace], users: Iterable[pytest.Item]) -> None:
    """Create the entities of the tests' marks. A wrong mark fails them, without a traceback."""
    known: dict[str, tuple[pytest.Item, object]] = {}
    for item in users:
        problem = _declare_for(namespaces, item, known)
        if problem:
            pytest.fail(f"@pytest.mark.{MARK} of {item.nodeid}: {problem}", pytrace=False)


def _declare_for(
    namespaces: Sequence[EmulatedNamespace], item: pytest.Item, known: dict[str, tuple[pytest.Item, object]]
) -> str:
    """Create the entities of one test's marks. Return the problem with them, or an empty string.

    `known` has the definitions of earlier tests in the same namespaces, and gets those of this test.
    """
    from sbpair.testing.emulator_thread import definitions, read_declaration

    # The closest mark comes first, and its definition of an entity wins over those of a class or a module.
    own: dict[str, tuple[object, object]] = {}
    for node, mark in item.iter_markers_with_node(MARK):
        try:
            if mark.args:
                raise UsageError("takes queues, topics and config by name")
            declared = read_declaration(mark.kwargs, item.path.parent)
            for each in namespaces:
                each.create(declared)
        except SbpairError as error:
            return error.message
        for name, definition in definitions(declared):
            place, other = own.setdefault(name, (node, definition))
            if place is node and other != definition:
                return f"{name} is declared otherwise in another mark of {node.name}"
    for name, (_, definition) in own.items():
        first, other = known.setdefault(name, (item, definition))
        if other != definition:
            return f"{name} is declared otherwise above, by {first.nodeid}"
    return ""
