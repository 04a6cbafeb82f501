"""Entities as users name them, `[SIDE:]ENTITY`, in the namespaces that a command can reach.

SIDE is `primary`, `secondary`, or the name of `[namespaces.NAME]`. A colon is illegal in the path of an entity.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.cli.options.common import NamespaceSelection, PairSelection
from sbpair.cli.options.values import flags_of, load_profile, warn_of_unknown_variables
from sbpair.config import state_setting
from sbpair.config.environment import refuse_secrets
from sbpair.config.file import SingleNamespace, has_pair, load_namespace
from sbpair.config.setting import Flags
from sbpair.errors import NameInvalid, UsageError
from sbpair.model.message_state import MessageState, split_state
from sbpair.model.pair import SIDES

if TYPE_CHECKING:
    from sbpair.cli.render.screen import Screen
    from sbpair.config import Profile
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.runs.database import StateOwner
    from sbpair.syphon.move_ends import EntityAddress


@dataclass
class Reach:
    """The namespaces that a command can name: both of its pair, and those of the file.

    Each is read from the configuration when it is first named. `namespace` is that of `--namespace`.
    """

    flags: Flags
    namespace: str | None
    screen: Screen
    _namespaces: dict[str, SingleNamespace] = field(default_factory=dict)

    @cached_property
    def profile(self) -> Profile:
        return load_profile(self.flags, self.screen)

    @property
    def pair(self) -> Pair:
        return self.profile.pair

    def address(
        self, text: str, *, side: str | None = None, state: MessageState | None = None, what: str = ""
    ) -> EntityAddress:
        """Return the entity that a text names. `side` and `state` are those of options. Raises UsageError."""
        given, name = self.split(text, side, what)
        return self._address(given or self.namespace or "", name, state, what)

    def split(self, text: str, side: str | None, what: str = "") -> tuple[str, str]:
        """Return the side, of the text or else the given one, and the rest of the text. Raises UsageError."""
        given, colon, name = ("", "", text) if "://" in text else text.rpartition(":")
        if colon and (not given or not name):
            raise UsageError(
                f"{_before(what)}{text!r}: expected SIDE:ENTITY", hint="write primary:orders, or orders alone"
            )
        if given and side is not None and given != side:
            raise UsageError(f"{_before(what)}{text!r} names {given}, and --side {side}", hint="name the side once")
        return given or side or "", name

    def owner(self, *ends: EntityAddress) -> StateOwner:
        """Return whose runs a move is: those of `--namespace`, of the pair, or of the source's namespace.

        Without ends, those that a command shows: of `--namespace`, or of the pair.
        """
        from sbpair.runs.database import StateOwner

        if self.namespace is None and (not ends or any(each.side in SIDES for each in ends)):
            return StateOwner(self.pair.ends, self.profile.state_directory)
        name = self.namespace or ends[0].side
        found = self._namespace(name)
        return StateOwner(found.ends, Path(str(state_setting(name, self.flags, os.environ).value)))

    def _address(self, side: str, name: str, state: MessageState | None, what: str) -> EntityAddress:
        path, named = split_state(name)
        if state not in (None, named) and named != MessageState.ACTIVE:
            raise UsageError(
                f"{_before(what)}{name} names messages that are {named}, not {state}", hint=f"write {path}"
            )
        if path.isdecimal() and side in ("", "secondary"):
            path, side = backlog.queue_path(self.pair.primary.name, int(path)), "secondary"
        try:
            backlog.check_path(path, shorten="give the name of a queue, topic or subscription")
        except NameInvalid as error:
            entity, sign, _ = path.partition("/$")
            hint = f"dead letters of {entity} are {entity}/$DeadLetterQueue, also by --messages dead"
            raise NameInvalid(f"{_before(what, ':')}{error.message}", hint=hint if sign else error.hint) from None
        if not side:
            side = "secondary" if backlog.under_prefix(self.pair.primary.name, path) else "primary"
        from sbpair.syphon.move_ends import EntityAddress

        return EntityAddress(side, self.endpoint(side), path).in_state(state or named)

    def endpoint(self, side: str) -> Endpoint:
        """Return the namespace of a side. Raises UsageError if it does not exist."""
        if side in SIDES and side != self.namespace:
            return self.pair.primary if side == "primary" else self.pair.secondary
        return self._namespace(side).endpoint

    def _namespace(self, name: str) -> SingleNamespace:
        if name not in self._namespaces:
            may_be_host = name == self.namespace
            try:
                self._namespaces[name] = load_namespace(name, self.flags, os.environ, may_be_host=may_be_host)
            except UsageError as error:
                if side := self._side_of(name):
                    leave_out = "leave --namespace out, and " if may_be_host else ""
                    error.hint = f"{name} is the {side} of the pair: {leave_out}write {side}:ENTITY for its entities"
                raise
        return self._namespaces[name]

    def _side_of(self, name: str) -> str | None:
        """Return the side of the pair whose namespace has this name."""
        with suppress(UsageError):  # of a file with several pairs, for one
            if has_pair(self.flags, os.environ):
                return next((side for side in SIDES if getattr(self.pair, side).name.lower() == name.lower()), None)
        return None


def _before(what: str, sign: str = "") -> str:
    return f"{what}{sign} " if what else ""


def reach_of(selection: PairSelection, screen: Screen, *, count: int | None = None, state: Path | None = None) -> Reach:
    """Return the namespaces that a command line can name. Raises UsageError if the configuration is wrong."""
    flags = flags_of(selection, count=count, state=state)
    warn_of_unknown_variables(flags, screen)
    refuse_secrets(os.environ)
    namespace = selection.namespace if isinstance(selection, NamespaceSelection) else None
    reach = Reach(flags, namespace, screen)
    if namespace is not None:
        reach.endpoint(namespace)
    return reach
