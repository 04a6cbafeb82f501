"""How fast a backlog moves as far as waiting goes: virtual time computes nothing, and what is left are answers."""

from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.description import QueueDescription
from tests.benchmarks.stranded import BATCH, DESTINATIONS, QUEUES, Stranded, destination, session_id
from tests.faults.simulation.plan import BEGAN_MS
from tests.faults.simulation.stage import Stage, played

ROUND_TRIP_SECONDS = 0.01
MESSAGES = 6_000
WANTED = 20_000
"""Messages a second, once the first one has arrived."""


@played(queues=QUEUES)
async def test_10_ms_of_round_trip_allow_20_000_messages_a_second(stage: Stage) -> None:
    stage.network.weather.slow = ROUND_TRIP_SECONDS / 2
    stage.network.weather.window = 4 * 1024 * 1024
    queues = []
    for number in range(DESTINATIONS):
        described = QueueDescription(requires_session=session_id(number) is not None)
        queues.append(stage.world.primary.create_queue(destination(number), described))
    stranded = Stranded(MESSAGES, BEGAN_MS)
    for number in range(MESSAGES):
        message = service_envelope.read_message(stranded.message(number))
        stage.backlog(number // BATCH % QUEUES).send([message])
    running = stage.start(once=True)
    began = await stage.until(lambda: any(queue.counts().total for queue in queues))
    ended = await stage.until(lambda: sum(queue.counts().total for queue in queues) == MESSAGES)
    assert MESSAGES / (ended - began) > WANTED
    assert (await running).receipt.sent == MESSAGES
