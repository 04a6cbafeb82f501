"""A backlog that lets a message neither be sent nor dead-lettered: `--once` ends all the same, and says so."""

import asyncio

import pytest

from sbpair.amqp_server.refusals import ServiceError
from sbpair.move.settlement import DEAD_LETTER_TRIES
from tests.faults.simulation.stage import Stage, play, played

LOCK_SECONDS = 60.0


class Stubborn:
    """Refuses to dead-letter the first so many times."""

    def __init__(self, stage: Stage, times: int) -> None:
        self.asked = 0
        self._left = times
        self._engine = stage.backlog().messages
        self._dead_letter = self._engine.dead_letter
        self._engine.dead_letter = self._refuse

    def _refuse(self, token: bytes, *reason: str | None) -> None:
        self.asked += 1
        if self.asked <= self._left:
            raise ServiceError("The dead-letter queue does not take it.")
        self._dead_letter(token, *reason)


@pytest.mark.parametrize("managed", [True, False])
def test_once_leaves_what_can_never_be_dead_lettered_and_says_so(managed: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.destination()
        stage.strand(1, 3)
        stage.strand(2, to="not//a//path")
        stubborn = Stubborn(stage, 1_000)
        result = await asyncio.wait_for(stage.start(once=True), 10 * LOCK_SECONDS)
        assert stubborn.asked <= DEAD_LETTER_TRIES
        assert stage.ids(stage.destination()) == ["m1", "m3"]
        assert (result.exit_code, result.receipt.remaining, result.receipt.balanced) == (3, 1, True)
        ((_, error),) = result.failures
        assert error.message.startswith("1 message could neither be sent nor dead-lettered, and stayed: ")
        assert "does not take it" in error.message
        assert stage.ids(stage.backlog()) == ["m2"]
        assert stage.backlog().messages.locked_count == 0

    play(scene, managed=managed)


@pytest.mark.parametrize("times", [1, DEAD_LETTER_TRIES - 1])
@played()
async def test_once_tries_again_when_the_lock_is_over(stage: Stage, times: int) -> None:
    stage.strand(1, to="not//a//path")
    stubborn = Stubborn(stage, times)
    result = await asyncio.wait_for(stage.start(once=True), 10 * LOCK_SECONDS)
    assert stubborn.asked == times + 1
    assert (result.receipt.dead_lettered, result.receipt.remaining, result.failures) == (1, 0, ())


@played()
async def test_a_watch_goes_on_trying_at_the_pace_of_the_lock(stage: Stage) -> None:
    stage.strand(1, to="not//a//path")
    stubborn = Stubborn(stage, 20)
    watching = stage.start()
    await asyncio.sleep(10 * LOCK_SECONDS)
    assert 9 <= stubborn.asked <= 11
    await asyncio.sleep(12 * LOCK_SECONDS)
    stage.stop.set()
    result = await watching
    assert (stubborn.asked, result.receipt.dead_lettered, result.failures) == (21, 1, ())
