"""Faults that can be put on a namespace and taken off again, by the control door or by a test.

A kind of fault is a context manager over the namespace: what it does on entering is undone on leaving. A new kind is
one function here, entered in KINDS with the fields that it needs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from sbpair.emulator.errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sbpair.emulator.namespace import Namespace


class BadField(ArgumentInvalid):
    """A field of a control request that cannot be used; `where` names it."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class FaultUnknown(ArgumentInvalid):
    """No fault of this id is in force."""

    status, sub_code = 404, 40400


@dataclass(frozen=True, slots=True)
class Fault:
    """What was asked for. Which of the optional fields a kind needs is said in KINDS."""

    kind: str
    namespace: str
    entity: str | None = None
    partition: int | None = None
    after_frames: int | None = None
    count: int | None = None
    ms: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    begin: Callable[[Namespace, Fault], AbstractContextManager[None]]
    needs: tuple[str, ...] = ()


@contextmanager
def namespace_down(namespace: Namespace, _: Fault) -> Iterator[None]:
    """Every connection breaks, and new ones are refused, until the fault ends."""
    namespace.take_down()
    try:
        yield
    finally:
        namespace.bring_up()


KINDS: Final[dict[str, Kind]] = {"namespace-down": Kind(namespace_down)}


class Faults:
    """The faults in force, by id."""

    def __init__(self, namespaces: Mapping[str, Namespace]) -> None:
        self._namespaces = namespaces
        self._active: dict[str, tuple[Fault, AbstractContextManager[None]]] = {}
        self._last = 0

    def begin(self, fault: Fault) -> str:
        """Puts the fault in force; the id ends it. BadField where a field is missing, or names what is not known."""
        kind = KINDS.get(fault.kind)
        if kind is None:
            raise BadField("kind", f"'{fault.kind}' is none of {', '.join(sorted(KINDS))}")
        namespace = self._namespaces.get(fault.namespace)
        if namespace is None:
            raise BadField("namespace", f"'{fault.namespace}' is none of {', '.join(sorted(self._namespaces))}")
        for name in kind.needs:
            if getattr(fault, name) is None:
                raise BadField(name, f"a fault of kind '{fault.kind}' needs it")
        running = kind.begin(namespace, fault)
        running.__enter__()
        self._last += 1
        identity = f"fault-{self._last}"
        self._active[identity] = (fault, running)
        return identity

    def end(self, identity: str) -> None:
        """FaultUnknown where no fault of this id is in force."""
        found = self._active.pop(identity, None)
        if found is None:
            raise FaultUnknown(f"No fault '{identity[:100]}' is in force.")
        found[1].__exit__(None, None, None)

    def end_all(self) -> None:
        for identity in list(self._active):
            self.end(identity)

    def active(self) -> dict[str, Fault]:
        return {identity: fault for identity, (fault, _) in self._active.items()}

    def namespace_down(self, namespace: str) -> str:
        return self.begin(Fault("namespace-down", namespace))


_NUMBERS: Final = frozenset({"partition", "after_frames", "count", "ms", "seed"})
_NAMES: Final = tuple(field.name for field in fields(Fault))


def read_fault(document: object) -> Fault:
    """The fault that a JSON document describes. BadField names what is wrong with it."""
    if not isinstance(document, dict):
        raise BadField("body", "a JSON object is expected")
    for name, value in document.items():
        if name not in _NAMES:
            raise BadField(str(name)[:100], f"unknown; known are {', '.join(_NAMES)}")
        if name in _NUMBERS:
            read_count(name, value)
        elif not isinstance(value, str):
            raise BadField(name, "a string is expected")
    for name in ("kind", "namespace"):
        if name not in document:
            raise BadField(name, "missing")
    return Fault(**document)


def read_count(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise BadField(where, "a whole number from 0 is expected")
    return value
