"""Which namespace is the active one, which its backup, and what changes that. Pure.

The law: TRANSITIONS is all of it. The roles are swapped where the backup has taken what the active one could not, or by
command; where neither has, they stay.

    settled  messages go to the active one
    turned   the active one may be gone: this message is for the backup, and the roles hang on what becomes of it
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
    TURNED = "turned"


class RoleEvent(Enum):
    TOOK = "the message was taken"
    GONE = "an error says that the data center may be gone"
    REFUSED = "an error says something else"
    SWAP = "a swap was commanded"


STAY, SWAP = False, True

TRANSITIONS: Final = MappingProxyType(
    {
        (RoleState.SETTLED, RoleEvent.GONE): (RoleState.TURNED, STAY),
        (RoleState.SETTLED, RoleEvent.SWAP): (RoleState.SETTLED, SWAP),
        (RoleState.TURNED, RoleEvent.TOOK): (RoleState.SETTLED, SWAP),
        (RoleState.TURNED, RoleEvent.GONE): (RoleState.SETTLED, STAY),
        (RoleState.TURNED, RoleEvent.REFUSED): (RoleState.SETTLED, STAY),
    }
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is who. `target` is where the message goes that is under way, or the next one."""

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


def after(roles: Roles, event: RoleEvent) -> Roles:
    """The roles once `event` has happened to `roles.target`."""
    state, swapped = TRANSITIONS.get((roles.state, event), (roles.state, STAY))
    return Roles(roles.backup if swapped else roles.active, state)
