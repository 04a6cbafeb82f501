"""The storage of an emulator: it restores namespaces from a file, and then stores all that changes in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sbpair.emulator.faults.fault_points import Unwritable
from sbpair.emulator.storage import data_file
from sbpair.emulator.storage.change_log import CallLater, ChangeLog
from sbpair.emulator.storage.documents import decode
from sbpair.emulator.storage.recorded import Observer
from sbpair.emulator.storage.restore import restore
from sbpair.emulator.storage.unreadable import UNREADABLE, reason, unreadable

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.server import RequestedNamespace


class Storage:
    """The file of an emulator. With `durable`, nothing is acknowledged before it is stored.

    `ports` has the port that each namespace had. Raises StateRefused for a file that is broken, of another kind or
    version, or of other namespaces; MachineLacks for one that cannot be read or written. Such a file is not changed.
    """

    def __init__(self, path: Path, requested: Sequence[RequestedNamespace], *, durable: bool = False) -> None:
        self._path = path
        self._durable = durable
        self._log: ChangeLog | None = None
        self._clock: ClockRecord | None = None
        self._namespaces: list[Namespace] = []
        self._observers: list[Observer] = []
        self._unwritable = Unwritable()
        self.ports: dict[str, int] = {}
        with data_file.reading(path) as db:
            if db is not None:
                self._check_namespaces(db, requested)

    def _check_namespaces(self, db: sqlite3.Connection, requested: Sequence[RequestedNamespace]) -> None:
        kinds: dict[str, tuple[str, int]] = {}
        for name, text in db.execute("SELECT * FROM namespaces"):
            try:
                document = decode(text)
                self.ports[name] = int(document["port"])
                kinds[name] = (str(document["tier"]), int(document["partitions"]))
            except UNREADABLE as error:
                raise data_file.broken(self._path, unreadable(f"namespace '{name}'", error)) from error
        wanted = {each.name: (each.tier.lower(), each.partitions) for each in requested}
        if kinds and kinds != wanted:
            start_with = " ".join(f"--namespace {_option(name, self.ports[name], *kinds[name])}" for name in kinds)
            raise data_file.of_others(self._path, _described(kinds), _described(wanted), start_with)

    def start(self, namespaces: Mapping[str, Namespace], ports: Sequence[int], clock: Clock, later: CallLater) -> None:
        """Restore the namespaces, and store all that changes in them from now on."""
        self._namespaces = list(namespaces.values())
        log = ChangeLog(self._path, later, self._on_failing)
        self._observers = [Observer(log, *each) for each in zip(self._namespaces, ports, strict=True)]
        with data_file.reading(self._path) as db:
            if db is not None:
                try:
                    restore(db, dict(zip(namespaces, self._observers, strict=True)), log, clock)
                except UNREADABLE as error:
                    raise data_file.broken(self._path, reason(error)) from error
        log.open(data_file.open_for_writing(self._path))
        self._log, self._clock = log, ClockRecord(clock)
        for namespace, observer in zip(self._namespaces, self._observers, strict=True):
            namespace.observer = observer
            observer.keys_changed()
            if self._durable:
                namespace.store_changes = self._store_changes
        for observer in self._observers:
            observer.resume_forwarding()
        with data_file.errors(self._path):
            log.write()

    def on_clock_advanced(self) -> None:
        """Store the time: the next emulator's clock continues from there."""
        if self._log is not None and self._clock is not None:
            self._log.note(self._clock)

    def close(self) -> None:
        """Store what is left, and close the file. Raises MachineLacks if it cannot be stored."""
        if self._log is not None:
            self.on_clock_advanced()
            for observer in self._observers:
                observer.note_times()
            self._log.close()

    def _store_changes(self) -> bool:
        """Store all changes. If that fails, break all connections: nothing may be acknowledged that waits for it."""
        if self._log is None or self._log.commit():
            return True
        for namespace in self._namespaces:
            for connection in list(namespace.fault_points.connections):
                connection.output.transport.abort()
        return False

    def _on_failing(self, failing: bool) -> None:
        """Refuse operations while the file cannot be written."""
        for namespace in self._namespaces:
            points = namespace.fault_points
            if failing:
                points.meters.append(self._unwritable)
            else:
                points.meters.remove(self._unwritable)
                points.resume()


class ClockRecord:
    """The time of the emulator, which may be ahead of the machine's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def write(self, db: sqlite3.Connection) -> None:
        db.execute("UPDATE clock SET now_ms = ?", (self._clock.now_ms(),))

    def forget(self) -> None:
        """Do nothing: the time is written as it is."""


def _option(name: str, port: int, tier: str, partitions: int) -> str:
    return f"{name}={port},{tier}" + (f",{partitions}" if partitions > 1 else "")


def _described(namespaces: Mapping[str, tuple[str, int]]) -> str:
    return " and ".join(
        f"{name} ({tier}{f', {partitions} partitions' if partitions > 1 else ''})"
        for name, (tier, partitions) in namespaces.items()
    )
