"""Golden files of a folder: `WRITE_GOLDEN=1 pytest TESTS` writes them again."""

import os
from pathlib import Path


def check_golden(path: Path, text: str) -> None:
    """Compare a text with its golden file."""
    if "WRITE_GOLDEN" in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    assert text == path.read_text("utf-8"), "if it should change: set WRITE_GOLDEN=1, and read the difference"
