"""The table of clients in the emulator's README: a row for each behaviour, and what tests show of each client.

`WRITE_MATRIX=1 pytest -m '' tests/clients` writes it, from all tests of test_clients.py.
"""

import re
from collections.abc import Callable
from pathlib import Path

import sbpair.emulator
from tests.clients.driver import BEHAVIOURS, CLIENTS, Client

DOCUMENT = Path(sbpair.emulator.__file__).with_name("README.md")
PLACE = re.compile(r"(?<=<!-- clients -->\n).*?(?=<!-- /clients -->)", re.DOTALL)
TEST = re.compile(r"test_clients\.py::\w+\[(.+): (.+)\]$")
"""A test's id ends with a client and what it shows of it."""


def tested(outcomes: dict[str, str]) -> Callable[[Client, str], bool]:
    """Return whether all tests of an ability passed, from the outcomes of tests by their ids."""
    found: dict[tuple[str, str], set[str]] = {}
    for test, outcome in outcomes.items():
        if match := TEST.search(test):
            for ability in match[2].split():
                found.setdefault((match[1], ability), set()).add(outcome)
    return lambda client, ability: found.get((client.name, ability)) == {"passed"}


def table(does: Callable[[Client, str], bool]) -> str:
    """Return the table's lines, given what each client does."""
    heads = ["client", *(client.name for client in CLIENTS)]
    rows = [[words, *(_cell(client, names, does) for client in CLIENTS)] for words, names in BEHAVIOURS.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def _cell(client: Client, names: tuple[str, ...], does: Callable[[Client, str], bool]) -> str:
    done = [name for name in names if does(client, name)]
    if len(done) == len(names):
        return "yes"
    return ", ".join([*done, *(client.faults[name] for name in names if name in client.faults)]) or "—"


def write(outcomes: dict[str, str]) -> None:
    DOCUMENT.write_text(PLACE.sub(lambda _: table(tested(outcomes)), DOCUMENT.read_text()))
