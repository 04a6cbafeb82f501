"""The billed operations of one message, as `cost.of_units` has them of many."""

from sbpair.model.cost import Operations, of_units, units


def moved(size: int) -> Operations:
    return of_units(units(size), 0)


def turned_away(size: int) -> Operations:
    return of_units(0, units(size))
