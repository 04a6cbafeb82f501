"""The roles of the two namespaces, active and backup, and the events that change them. Pure.

Invariant: TRANSITIONS is complete. The roles are swapped by command, or when the backup accepts a message that the
active side could not. If neither accepts it, they stay.

    settled  messages go to the active side
    trying   the active side may be gone: this message goes to the backup, and its outcome decides the roles
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Side: TypeAlias = Literal["primary", "secondary"]

SIDES: Final[tuple[Side, Side]] = ("primary", "secondary")


class RoleState(Enum):
    SETTLED = "settled"
    TRYING_BACKUP = "trying the backup"


class RoleEvent(Enum):
    ACCEPTED = "the message was accepted"
    GONE = "the error counts as an outage"
    REFUSED = "the error does not count as an outage"
    SWAP = "a swap was commanded"


STAY, SWAP = False, True

TRANSITIONS: Final = MappingProxyType(
    {
        (RoleState.SETTLED, RoleEvent.GONE): (RoleState.TRYING_BACKUP, STAY),
        (RoleState.SETTLED, RoleEvent.SWAP): (RoleState.SETTLED, SWAP),
        (RoleState.TRYING_BACKUP, RoleEvent.ACCEPTED): (RoleState.SETTLED, SWAP),
        (RoleState.TRYING_BACKUP, RoleEvent.GONE): (RoleState.SETTLED, STAY),
        (RoleState.TRYING_BACKUP, RoleEvent.REFUSED): (RoleState.SETTLED, STAY),
    }
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The current roles. `target` is the side for the message being sent, or the next one."""

    active: Side = "primary"
    state: RoleState = RoleState.SETTLED

    @property
    def backup(self) -> Side:
        return other(self.active)

    @property
    def target(self) -> Side:
        return self.active if self.state is RoleState.SETTLED else self.backup


def other(side: Side) -> Side:
    return "secondary" if side == "primary" else "primary"


def next_roles(roles: Roles, event: RoleEvent) -> Roles:
    """Return the roles after `event` has happened to `roles.target`."""
    state, swapped = TRANSITIONS.get((roles.state, event), (roles.state, STAY))
    return Roles(roles.backup if swapped else roles.active, state)
