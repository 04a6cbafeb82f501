"""The lease of a redrive. What it moves and prints is in `sessions/redrive.txt`."""

from pathlib import Path

import pytest

from sbpair.backlog import queue_path
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Ends
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.syphon.move_spec import MoveSpec
from sbpair.testing import EmulatorThread
from tests.kit.command import Here, environment


@pytest.mark.usefixtures("impatient")
def test_dead_letters_of_a_backlog_have_one_mover(here: Here, tmp_path: Path) -> None:
    source, state = queue_path("contoso", 1), ("--state", str(tmp_path))
    with EmulatorThread() as thread:
        primary, secondary = thread.emulator.namespaces.values()
        thread.do(lambda: (primary.create_queue("orders"), secondary.create_queue(source)))
        environ = environment(thread.emulator, NO_COLOR="1")
        sides = (
            endpoint_from_connection_string(each.connection_string, name=each.name) for each in (primary, secondary)
        )
        held = MoveSpec(Ends("p", *sides), form=BACKLOG_DEAD_LETTERS).leased
        with hold_machine_leases(held[0], None, "r", held[1]):
            for words in (["redrive", "--backlog"], ["redrive", source], ["move", source, "orders", "--dead-letters"]):
                code, _, err = here(*words, *state, **environ)
                assert code == 4
                assert "moving messages of contoso/x-servicebus-transfer/*/$deadletterqueue" in err
            assert here("syphon", "--once", *state, **environ)[0] == 0
