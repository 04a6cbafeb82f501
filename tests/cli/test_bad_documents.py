"""Documents of a user that are too large, too deep, or not files: each reader refuses them at little cost."""

import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest

from sbpair.cli.commands.management import read_entities
from sbpair.config.file import read_pairs
from sbpair.emulator.declared_entities import load_config
from sbpair.errors import MachineLacks, UsageError
from sbpair.operating_system.files import MAX_BYTES

READERS: dict[str, Callable[[Path], object]] = {
    "config": read_pairs,
    "entities": read_entities,
    "emulator": load_config,
}
DOCUMENTS = {
    "large": b"#" * (MAX_BYTES + 1),
    "lists in lists": b"a = " + b"[" * 100_000 + b"]" * 100_000,
    "lists in lists of JSON": b"[" * 100_000,
    "tables in tables": b"a = " + b"{a = " * 100_000,
    "a key of many parts": b"[queues.%s]" % b".".join([b"a"] * 20_000),
    "keys of many parts": b"\n".join(b"[q%d.%s]" % (each, b".".join([b"a"] * 999)) for each in range(125)),
    "many keys": b"\n".join(b"a%d = 1" % each for each in range(4_000)),
    "NUL": b"\0" * 1000,
    "not UTF-8": b"\xff\xfe\x80",
    "a string without an end": b'"' + b'\\"' * 120_000,
    "many quotes": b'"' * 260_000,
    "comments without an end": b"/*" * 120_000,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", [*DOCUMENTS, "a directory", "a pipe", "a device"])
def test_a_document_that_cannot_be_read_is_refused(tmp_path: Path, case: str, reader: str) -> None:
    path = tmp_path / "document"
    if case == "a directory":
        path.mkdir()
    elif case in ("a pipe", "a device") and sys.platform == "win32":
        pytest.skip("has none of a user")
    elif case == "a pipe":
        os.mkfifo(path)
    elif case == "a device":
        path = Path("/dev/zero")
    else:
        path.write_bytes(DOCUMENTS[case])
    started = process_time()
    tracemalloc.start()
    try:
        with pytest.raises(UsageError) as caught:
            READERS[reader](path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.hint
    assert peak < 100_000_000
    assert process_time() - started < 20


def test_a_closed_stdin_is_no_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(MachineLacks, match="stdin is closed"):
        read_entities(Path("-"))
