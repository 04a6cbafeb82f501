"""The roles of a passive sender: the table, and any story of sends against what the advice says in a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.sender.replication.roles import SIDES, TRANSITIONS, Event, Roles, State, after, other

ERRORS = (Event.GONE, Event.REFUSED)
SENDS = st.lists(st.tuples(st.sampled_from((Event.TOOK, *ERRORS)), st.sampled_from((Event.TOOK, *ERRORS))))


@pytest.mark.parametrize(
    ("first", "second", "active", "tried"),
    [
        (Event.TOOK, None, "primary", ["primary"]),
        (Event.REFUSED, None, "primary", ["primary"]),
        (Event.GONE, Event.TOOK, "secondary", ["primary", "secondary"]),
        (Event.GONE, Event.GONE, "primary", ["primary", "secondary"]),
        (Event.GONE, Event.REFUSED, "primary", ["primary", "secondary"]),
    ],
)
def test_one_send(first: Event, second: Event | None, active: str, tried: list[str]) -> None:
    roles, places = Roles(), []
    for event in filter(None, (first, second)):
        places.append(roles.target)
        roles = after(roles, event)
    assert (roles, places) == (Roles(active), tried)


@given(SENDS, st.sets(st.integers(0, 20)))
def test_roles_are_swapped_by_a_backup_that_took_it_and_by_command_and_by_nothing_else(
    sends: list[tuple[Event, Event]], commands: set[int]
) -> None:
    roles, active = Roles(), "primary"
    for number, (first, second) in enumerate(sends):
        if number in commands:
            roles, active = after(roles, Event.SWAP), other(active)
        roles = after(roles, first)
        assert (roles.state is State.TURNED) is (first is Event.GONE)
        if roles.state is State.TURNED:
            assert roles.target == other(active)
            roles = after(roles, second)
            active = other(active) if second is Event.TOOK else active
        assert roles == Roles(active)


@given(st.sampled_from(SIDES), st.sampled_from(State), st.sampled_from(Event))
def test_what_is_not_in_the_table_changes_nothing(side: str, state: State, event: Event) -> None:
    roles = Roles(side, state)
    assert {roles.active, roles.backup} == set(SIDES)
    if (state, event) not in TRANSITIONS:
        assert after(roles, event) == roles
