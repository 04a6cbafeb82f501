"""The file of removed messages: what it holds after each kind of failure, and which files are refused."""

import json
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import Properties, Sections, data_body
from sbpair.errors import LeaseHeld, MachineLacks, SbpairError, StateRefused, UsageError
from sbpair.message_io.message_json import body_of, render_peeked
from sbpair.model.document import encoded
from sbpair.move.interface import RoutedMessage
from sbpair.move.kept_file import KeptFile
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.route import Facts, Send
from sbpair.move.peek.peeker import PeekedMessage

WHOLE = '{"schema": "sbpair/kept-before/1", "message_id": "old"}'


class Received:
    """A received message; one without sections is not a message."""

    def __init__(self, name: str, size: int = 10, *, readable: bool = True) -> None:
        self.facts = Facts("orders", 1, 1, name, None)
        sections = Sections(properties=Properties(message_id=name).encode(), body=data_body(b"x" * size))
        self.content = GenericMessage(sections) if readable else None


def routed(*messages: Received) -> list[Any]:
    return [RoutedMessage(each, Send("removed", None, None, None), 1) for each in messages]  # type: ignore[arg-type]


def render(message: Any) -> Any:
    seen = PeekedMessage(message.facts, message.content.split())
    return encoded(render_peeked("primary", seen, body_of(seen.sections)))


def kept(path: Path | None, show: Callable[[Any], None] | None = None) -> KeptFile:
    return KeptFile(path, render, show)


async def keep_all(keep: KeptFile, *messages: Received) -> None:
    left = routed(*messages)
    while left:
        batch = keep.encode(left)
        await keep.send(batch)()
        left = left[batch.count :]


def names(path: Path) -> list[str]:
    return [json.loads(line)["message_id"] for line in path.read_text().splitlines()]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_lines_are_appended_to_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    for name in ("m1", "m2"):
        with kept(path) as keep:
            await keep_all(keep, Received(name))
    assert names(path) == ["m1", "m2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (keep.line_number(1), keep.lines, keep.size) == (2, 1, path.stat().st_size)


def test_a_run_that_keeps_nothing_leaves_no_file(tmp_path: Path) -> None:
    with kept(tmp_path / "kept.jsonl"):
        pass
    assert not [*tmp_path.iterdir()]


async def test_a_full_disk_leaves_whole_lines_of_what_was_accepted(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with kept(path) as keep:
        await keep_all(keep, Received("m1"))
        with room_for(10_000), pytest.raises(MachineLacks, match="cannot be written: File too large"):
            await keep_all(keep, Received("m2"), Received("m3", 20_000))
        assert names(path) == ["m1"]
        await keep_all(keep, Received("m2"))
    assert names(path) == ["m1", "m2"]


async def test_a_deleted_file_accepts_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with kept(path) as keep:
        path.unlink()
        with pytest.raises(MachineLacks, match="it was deleted"):
            await keep_all(keep, Received("m1"))


@pytest.mark.parametrize(
    ("tail", "cut", "found"),
    [
        (WHOLE, False, ["old", "old", "m1"]),
        (WHOLE[:-4], True, ["old", "m1"]),
        (WHOLE[:9], True, ["old", "m1"]),
        (WHOLE[:-4] + "x" * 200_000, True, ["old", "m1"]),
    ],
)
async def test_the_last_line_of_a_killed_run_is_ended(tail: str, cut: bool, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    path.write_text(f"{WHOLE}\n{tail}")
    with kept(path) as keep:
        await keep_all(keep, Received("m1"))
    assert (keep.cut, names(path)) == (cut, found)


def _writable_by_all(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


@pytest.mark.parametrize(
    ("prepare", "error", "text"),
    [
        (lambda path: path.write_text("whole = 'line'\n"), UsageError, "has other lines"),
        (lambda path: path.write_text("{}\nhalf a line of notes"), UsageError, "is not of sbpair"),
        (Path.mkdir, UsageError, "not a regular file"),
        (_writable_by_all, StateRefused, "may write to"),
    ],
)
def test_other_files_are_refused(
    prepare: Callable[[Path], object], error: type[SbpairError], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "kept.jsonl"
    prepare(path)
    with pytest.raises(error, match=text), kept(path):
        pass


def test_a_file_has_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with kept(path), pytest.raises(LeaseHeld, match="in use by another run"), kept(path):
        pass


@pytest.mark.parametrize("file", ["kept.jsonl", None])
async def test_a_closed_output_accepts_what_is_kept_or_nothing(file: str | None, tmp_path: Path) -> None:
    path, shown, closed = file and tmp_path / file, list[str](), list[bool]()

    def show(document: Any) -> None:
        if len(shown) == 2:
            raise BrokenPipeError
        shown.append(document["message_id"])

    messages = [Received(f"m{number}") for number in range(5)]
    with kept(path or None, show) as keep:
        keep.on_failure = lambda: closed.append(True)
        if path:
            await keep_all(keep, *messages)
            assert (names(path), keep.line_number(keep.unshown)) == ([each.facts.message_id for each in messages], 3)
        else:
            with pytest.raises(MachineLacks, match="takes no more"):
                await keep_all(keep, *messages)
        with pytest.raises(MachineLacks, match="takes no more"):
            await keep_all(keep, Received("late"))
    assert (shown, isinstance(keep.failure, BrokenPipeError), any(closed)) == (["m0", "m1"], True, True)


async def test_a_message_that_cannot_be_read_is_refused_alone(tmp_path: Path) -> None:
    with kept(tmp_path / "kept.jsonl") as keep:
        batch = keep.encode(routed(Received("m1"), Received("m2", readable=False)))
        assert batch.count == 1
        refused = keep.encode(routed(Received("m2", readable=False)))
        with pytest.raises(SbpairError):
            keep.send(refused)
    assert kept(None).encode(routed(Received("m2", readable=False))).count == 1
