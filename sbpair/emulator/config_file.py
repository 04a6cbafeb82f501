"""The vendor emulator's configuration file, Config.json: JSON with comments, as its namespaces and their entities.

All faults of a file are reported together, each with its path in the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbpair.emulator.clock import ManualClock
from sbpair.emulator.declared_entities import DeclarationFault, Defaults, Members, RepeatedNames, declare
from sbpair.emulator.entities.description import TIERS
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.server import RequestedNamespace, check_requested
from sbpair.errors import SbpairError, UsageError
from sbpair.operating_system.files import read_document

if TYPE_CHECKING:
    from pathlib import Path

VENDOR_DEFAULTS: Final[Defaults] = {
    "Queue": {
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "LockDuration": "PT1M",
        "MaxDeliveryCount": "3",
    },
    "Topic": {"DefaultMessageTimeToLive": "PT1H", "DuplicateDetectionHistoryTimeWindow": "PT20S"},
    "Subscription": {"DefaultMessageTimeToLive": "PT1H", "LockDuration": "PT1M", "MaxDeliveryCount": "3"},
}
"""The defaults of the vendor's schema."""

NO_NAMESPACE: Final = 'add a namespace to the file: {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns"}]}}'
LOGGING_TYPES: Final = ("File", "Console", "File,Console", "Console,File")

# It matches also without its end: a search at each quote would take a time that grows with their square.
_STRING: Final = r'"(?:[^"\\]|\\.)*+"?'
_COMMENT: Final = re.compile(rf"({_STRING}|/\*(?!.*?\*/).*)|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA: Final = re.compile(rf"({_STRING}|[^\s,\[{{\"])(?:(\s*),(?=\s*[\]}}]))?", re.DOTALL)


class ConfigFileInvalid(UsageError):
    """A configuration file with faults. `faults` has them all, each on one line."""

    def __init__(
        self, source: str, faults: Sequence[DeclarationFault], hint: str = "correct the file; no namespace was started"
    ) -> None:
        self.faults = [f"{source}: {fault}" for fault in faults]
        super().__init__("\n".join(self.faults), hint=hint)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The namespaces of a file by name, each with its path in the document and its entities as data.

    `faults` are those that do not depend on a tier. `requested` reports them with the others.
    """

    source: str
    namespaces: Mapping[str, tuple[str, Mapping[str, Any]]]
    faults: Sequence[DeclarationFault] = ()

    def requested(self, given: Sequence[RequestedNamespace], first_port: int) -> list[RequestedNamespace]:
        """Return the namespaces, on ports from `first_port` unless `given` names one.

        Raises UsageError if `given` is wrong, and ConfigFileInvalid with all faults of the file.
        """
        if given:
            check_requested(given)
        if not self.namespaces:
            raise ConfigFileInvalid(self.source, self.faults, NO_NAMESPACE)
        by_name, known = {each.name.lower(): each for each in given}, [name.lower() for name in self.namespaces]
        if unknown := [each.name for each in given if each.name.lower() not in known]:
            hint = f"it has {', '.join(self.namespaces)}"
            raise UsageError(f"namespace '{unknown[0]}' is not in {self.source}", hint=hint)
        found = [
            by_name.get(name.lower(), RequestedNamespace(name, first_port + index))._replace(name=name)
            for index, name in enumerate(self.namespaces)
        ]
        faults = list(self.faults)
        for each in found:
            tier = TIERS[each.tier.lower()]
            faults += self._declare(Namespace(each.name, ManualClock(), tier=tier, partitions=each.partitions))
        if faults:
            raise ConfigFileInvalid(self.source, faults)
        return found

    def create_entities(self, namespace: Namespace) -> None:
        """Create the entities that the namespace lacks. Raises ConfigFileInvalid if it cannot have one of them."""
        if faults := self._declare(namespace):
            raise ConfigFileInvalid(self.source, faults)

    def _declare(self, namespace: Namespace) -> list[DeclarationFault]:
        path, declared = self.namespaces[namespace.name]
        return declare(namespace, path, declared, VENDOR_DEFAULTS)


def load_config(path: Path) -> ConfigFile:
    """Read a file. Raises UsageError and MachineLacks where it cannot be read, or is not JSON."""
    return parse_config(read_document(path, hint="check the path"), path.name)


def parse_config(text: str, source: str) -> ConfigFile:
    """Parse a document. Raises UsageError if it is not JSON."""
    members = Members()
    root = members.object("", _parse_json(text, source), ("UserConfig", "$schema"), "UserConfig")
    config: dict[str, Any] = {}
    if "UserConfig" in root:
        config = members.object("UserConfig", root["UserConfig"], ("Namespaces", "Logging"), "Namespaces")
    _check_logging(members, config)
    namespaces: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for path, item in members.items("UserConfig", config, "Namespaces"):
        found = members.object(path, item, ("Name", "Queues", "Topics", "HybridConnections"), "Name")
        name = members.text(path, found, "Name")
        if name is None:
            continue
        if name.lower() in map(str.lower, namespaces):
            members.fault(f"{path}.Name", f"namespace '{name}' is named twice")
        _check_name(members, f"{path}.Name", name)
        namespaces[name] = path, found
    if config.get("Namespaces") == []:
        members.fault("UserConfig.Namespaces", "a namespace is missing")
    return ConfigFile(source, namespaces, members.faults)


def _check_name(members: Members, path: str, name: str) -> None:
    try:
        RequestedNamespace(name, 0).check()
    except SbpairError as error:
        members.fault(path, f"{error.message}; {error.hint}")


def _check_logging(members: Members, config: Mapping[str, Any]) -> None:
    """Record faults of Logging, which has no effect: this emulator writes to stderr."""
    path = "UserConfig.Logging"
    kind = members.text(path, members.object(path, config.get("Logging", {}), ("Type",)), "Type")
    if kind is not None and kind.replace(" ", "") not in LOGGING_TYPES:
        members.fault(f"{path}.Type", f"unknown type '{kind[:100]}'; expected one of {' '.join(LOGGING_TYPES)}")


def _parse_json(text: str, source: str) -> object:
    """Parse JSON with comments and trailing commas, as .NET's configuration does. Raises UsageError."""
    # Blanks in place of a comment keep the line and column of an error.
    plain = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    plain = _TRAILING_COMMA.sub(lambda match: match[1] if match[2] is None else f"{match[1]}{match[2]} ", plain)
    try:
        return json.loads(plain, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"{source}:{error.lineno}:{error.colno}"
        raise UsageError(f"{where}: not JSON: {error.msg}", hint="comments with // are allowed") from None
    except ValueError as error:
        raise UsageError(f"{source}: not JSON: {error}", hint="correct the file") from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint="correct the file") from None


def _object(pairs: list[tuple[str, Any]]) -> RepeatedNames:
    found, names = RepeatedNames(pairs), [name for name, _ in pairs]
    if len(found) < len(names):
        found.repeated = tuple(name for name in found if names.count(name) > 1)
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON")
