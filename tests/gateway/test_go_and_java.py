"""The official clients for Go and Java: each step of a script ends through a gateway as it does without one."""

import pytest

from tests.gateway.clients.programs import PROGRAMS, steps
from tests.gateway.conftest import EXCEPTIONS
from tests.integration.node.install import NotHere
from tests.kit.running import NAMESPACE
from tests.kit.running_gateway import RunningGateway

QUEUES = {"orders": {}, "sessions": {"requires_session": True}}
ENTITIES = {"QUEUE": "orders", "SESSIONS": "sessions", "TOPIC": "news", "SUBSCRIPTION": "audit"}


@pytest.mark.odd_messages
@pytest.mark.parametrize("language", PROGRAMS)
def test_each_step_ends_as_it_does_without_a_gateway(language: str) -> None:
    try:
        command = PROGRAMS[language]()
    except NotHere as error:
        pytest.skip(str(error))
    with RunningGateway() as running:
        running[NAMESPACE].declare(QUEUES, {"news": {"audit": "sys.Label = 'wanted'"}})
        direct = steps(command, running.ready[0].connection_string, **ENTITIES)
        through = steps(command, running.connection_string, **ENTITIES)
    assert len(direct) > 10
    assert "error: " not in str(direct)
    both = {f"{step} ({language})": (result, through.get(step)) for step, result in direct.items()}
    others = {step: results for step, results in both.items() if results[0] != results[1]}
    assert others.keys() == {name for name in EXCEPTIONS if name.endswith(f"({language})")}, others
