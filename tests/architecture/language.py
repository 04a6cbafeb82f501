"""Checks of the language of docstrings, help and Markdown: `python tests/architecture/language.py [PATH ...]`."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_SENTENCE_WORDS = 40
MAX_TICS_PER_1000 = 2.0

TICS = re.compile(
    r"\b(what|whoever|nobody|somebody|(?:is|are|was|were|be) told|tells?|says?|that there (?:are|is)|made anew"
    r"|goes by|of late|for want of|ha(?:s|ve) \w+ be)\b",
    re.IGNORECASE,
)
"""Turns of phrase that make a reader stop. Some are right in their place, so only their rate is bounded."""

_VERBS = """
abort accept acquire add admit advance allow announce answer append apply archive ask attach audit await begin block
break build call cancel charge check choose clear close collect combine commit compare compile complete compute
confirm connect continue convert copy correct count create dead-letter decide decode defer delay delete deliver
describe detach disable discard divide do drain draw drop emit empty encode end enqueue estimate expire explain export
fail fetch fill filter find finish fold follow forget format forward give group handle have hold identify ignore import
iterate join keep learn let limit link list listen load lock log make map mark match measure merge move name note
observe open parse pass pause peek perform ping plan prefetch preview print prove provision publish put queue raise
react read receive record recover redirect refuse register rehearse reject release remove rename render renew repeat
replace report request reset restart restore resume retry return roll route run sample save schedule select send serve
set settle shorten show skip sort split start stop store strip summarize swap take translate try unlock update use
validate verify wait wake warn wrap write yield
"""
VERBS = frozenset(_VERBS.split())
"""The words that a function's docstring begins with, as an imperative. Add a verb that is missing."""


@dataclass(frozen=True)
class Text:
    """One text of the project: `kind` is function, property, class, module or prose."""

    place: str
    kind: str
    text: str

    @property
    def words(self) -> int:
        return len(re.findall(r"[A-Za-z]+", self.text))

    @property
    def tics(self) -> list[str]:
        return [match.group(0) for match in TICS.finditer(prose_of(self.text))]


def prose_of(text: str) -> str:
    """Return `text` without code: fenced and indented blocks, `code spans`, tables' rules and links' targets."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^(?: {4,}|\t).*$", "", text) if "```" in text else text
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """Split prose into sentences. A table's cell, a list item, a line of a tree and a heading each end one."""
    for block in re.split(r"\n\s*\n|\n\s*(?=[-*|#├└│]|\d+\. )|\|", prose_of(text)):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))


def long_sentences(text: str) -> list[str]:
    """Return the sentences that go past the bound."""
    return [each for each in sentences(text) if len(re.findall(r"[A-Za-z][\w'-]*", each)) > MAX_SENTENCE_WORDS]


def docstrings(path: Path) -> Iterator[Text]:
    """Yield every docstring of a Python file, attribute docstrings included."""
    tree = ast.parse(path.read_text())
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Text(f"{where}:{getattr(node, 'lineno', 1)}", _kind(node), text)
            for before, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    value = after.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield Text(f"{where}:{after.lineno}", "attribute", value.value)


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    names = {ast.unparse(each).rsplit(".", 1)[-1] for each in node.decorator_list}
    return "property" if names & {"property", "cached_property"} else "function"


def starts_wrong(text: Text) -> bool:
    """Return whether a function's docstring begins with anything but a verb, or any docstring with "What".

    A property's docstring names a value, as an attribute's does: a noun phrase is right there.
    """
    first = text.text.split()[0]
    if first.strip("`*.,:") == "What":
        return True
    if text.kind != "function":
        return False
    return first.strip(".,:;").lower() not in VERBS


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files at or below these paths."""
    return sorted(
        file for path in paths for file in ([path] if path.suffix == ".py" else path.rglob("*.py")) if file.is_file()
    )


def rate(texts: Iterable[Text]) -> float:
    """Return the tics per 1 000 words."""
    texts = list(texts)
    words = sum(each.words for each in texts)
    return 1000 * sum(len(each.tics) for each in texts) / words if words else 0.0


def findings(texts: Iterable[Text]) -> Iterator[str]:
    """Yield a line for each thing to rewrite."""
    for each in texts:
        if starts_wrong(each):
            yield f"{each.place}: {each.kind} begins with {each.text.split()[0]!r}: {each.text.splitlines()[0][:70]}"
        for sentence in long_sentences(each.text):
            yield f"{each.place}: {len(sentence.split())} words: {sentence[:90]}"
        if each.tics:
            yield f"{each.place}: {', '.join(each.tics)}"


def main(arguments: list[str]) -> None:
    """Print each finding and the figures."""
    paths = [Path(each).resolve() for each in arguments] or [ROOT / "sbpair"]
    texts = [each for file in python_files(paths) for each in docstrings(file)]
    files = [file for path in paths for file in ([path] if path.suffix == ".md" else path.rglob("*.md"))]
    texts += [Text(str(file), "prose", file.read_text()) for file in files if file.is_file()]
    words = sum(each.words for each in texts)
    figures = f"{len(texts)} texts, {words} words, {rate(texts):.2f} tics per 1 000 words (at most {MAX_TICS_PER_1000})"
    sys.stdout.write("".join(f"{line}\n" for line in [*findings(texts), figures]))


if __name__ == "__main__":
    main(sys.argv[1:])
