"""`sbpair replay plan` beside the journal of a syphon. What it counts and prints is in `sessions/replay.txt`."""

import json
from pathlib import Path

from sbpair.backlog import Aliases
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Journal
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.pairs import BacklogWorld
from tests.kit.stranded import put, stranded


async def test_messages_in_the_journal_would_not_be_sent_again(tmp_path: Path) -> None:
    async with Emulator() as emulator:
        world = BacklogWorld(emulator, 2)
        world.primary.create_queue("orders")
        with RunDatabase(tmp_path, world.pair.ends) as state:
            journal = Journal(state, run="before", destination_namespace="contoso")
            for index in range(2):
                queue = world.queue(index)
                for number in range(3):
                    put(queue, stranded(f"m{number}", Aliases("orders")))
                first = queue.messages.peek(0, 1)[0]
                key = ("contoso-dr", queue.path.lower(), first.sequence_number, first.enqueued_at_ms, "m0")
                journal.note_accepted(journal.note_sending([[key]], "orders"))
            journal.close()
        words = ("replay", "plan", "--count", "2", "--state", str(tmp_path), "--output", "json")
        _, out, _ = await command.finished(await command.start(*words, env=command.environment(emulator)))
    document = json.loads(out)
    assert (document["messages"], document["already_sent"], document["sent"]) == (6, 2, 4)
