"""The roles of a passive sender: the table, and any sequence of sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.replication.roles import SIDES, TRANSITIONS, RoleEvent, Roles, RoleState, next_roles, other

ERRORS = (RoleEvent.GONE, RoleEvent.REFUSED)
SENDS = st.lists(
    st.tuples(st.sampled_from((RoleEvent.ACCEPTED, *ERRORS)), st.sampled_from((RoleEvent.ACCEPTED, *ERRORS)))
)


@pytest.mark.parametrize(
    ("first", "second", "active", "tried"),
    [
        (RoleEvent.ACCEPTED, None, "primary", ["primary"]),
        (RoleEvent.REFUSED, None, "primary", ["primary"]),
        (RoleEvent.GONE, RoleEvent.ACCEPTED, "secondary", ["primary", "secondary"]),
        (RoleEvent.GONE, RoleEvent.GONE, "primary", ["primary", "secondary"]),
        (RoleEvent.GONE, RoleEvent.REFUSED, "primary", ["primary", "secondary"]),
    ],
)
def test_one_send_changes_roles_by_its_outcomes(
    first: RoleEvent, second: RoleEvent | None, active: str, tried: list[str]
) -> None:
    roles, places = Roles(), []
    for event in filter(None, (first, second)):
        places.append(roles.target)
        roles = next_roles(roles, event)
    assert (roles, places) == (Roles(active), tried)


@given(SENDS, st.sets(st.integers(0, 20)))
def test_roles_swap_only_by_backup_acceptance_or_command(
    sends: list[tuple[RoleEvent, RoleEvent]], commands: set[int]
) -> None:
    roles, active = Roles(), "primary"
    for number, (first, second) in enumerate(sends):
        if number in commands:
            roles, active = next_roles(roles, RoleEvent.SWAP), other(active)
        roles = next_roles(roles, first)
        assert (roles.state is RoleState.TRYING_BACKUP) is (first is RoleEvent.GONE)
        if roles.state is RoleState.TRYING_BACKUP:
            assert roles.target == other(active)
            roles = next_roles(roles, second)
            active = other(active) if second is RoleEvent.ACCEPTED else active
        assert roles == Roles(active)


@given(st.sampled_from(SIDES), st.sampled_from(RoleState), st.sampled_from(RoleEvent))
def test_an_event_outside_of_the_table_changes_no_roles(side: str, state: RoleState, event: RoleEvent) -> None:
    roles = Roles(side, state)
    assert {roles.active, roles.backup} == set(SIDES)
    if (state, event) not in TRANSITIONS:
        assert next_roles(roles, event) == roles
