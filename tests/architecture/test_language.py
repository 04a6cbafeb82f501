"""The project's language in docstrings, help texts and Markdown: see language.py."""

from functools import cache

import pytest

from tests.architecture.language import (
    MAX_TICS_PER_1000,
    ROOT,
    Text,
    docstrings,
    long_sentences,
    python_files,
    rate,
    starts_wrong,
)

MARKDOWN = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "tests/README.md",
    *sorted((ROOT / "sbpair").rglob("*.md")),
]
PROSE = [Text(str(path.relative_to(ROOT)), "prose", path.read_text()) for path in MARKDOWN]
HELP = [
    Text(path.name, "prose", path.read_text()) for path in sorted((ROOT / "tests" / "cli" / "golden").glob("*.txt"))
]


@cache
def texts_of(kind: str) -> list[Text]:
    if kind == "docstrings":
        return [each for file in python_files([ROOT / "sbpair"]) for each in docstrings(file)]
    return HELP if kind == "help" else PROSE


KINDS = ["docstrings", "help", "Markdown"]


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found = texts_of("docstrings")
    assert [f"{each.place}: {each.text.splitlines()[0]}" for each in found if starts_wrong(each)] == []


@pytest.mark.parametrize("name", KINDS)
def test_tics_are_rare(name: str) -> None:
    texts = texts_of(name)
    assert rate(texts) < MAX_TICS_PER_1000, f"{name}: {[(each.place, each.tics) for each in texts if each.tics]}"


@pytest.mark.parametrize("name", KINDS)
def test_sentences_are_short_enough(name: str) -> None:
    assert [(each.place, sentence) for each in texts_of(name) for sentence in long_sentences(each.text)] == []


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        ("function", "What is there.", True),
        ("function", "Whether it is open.", True),
        ("function", "`path` is its name.", True),
        ("function", "Return the path.", False),
        ("property", "The path.", False),
        ("class", "What is there.", True),
        ("class", "A queue.", False),
    ],
)
def test_first_words_are_judged(kind: str, text: str, wrong: bool) -> None:
    assert starts_wrong(Text("x", kind, text)) is wrong


def test_tics_and_long_sentences_are_found() -> None:
    assert Text("x", "prose", "Whoever is told of `what` goes by it.").tics == ["Whoever", "is told", "goes by"]
    assert len(long_sentences(f"{'word ' * 41}. Short one.")) == 1
