"""`sbpair man`: the pages, and the programs that read them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sbpair.cli.man_page import man_page, page_name, page_paths, write_pages
from tests.cli.test_golden import GOLDEN
from tests.kit.command import Here

DATE = "2026-11-23"
READERS = {
    "groff": ["groff", "-man", "-ww", "-z"],
    "mandoc": ["mandoc", "-T", "lint"],
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_pages(tmp_path_factory.mktemp("man"), DATE)


def rendered(page: Path, width: int = 80) -> str:
    """Return a page as text, without emphasis."""
    if shutil.which("groff") is None:
        pytest.skip("no groff on this machine")
    command = ["groff", "-man", "-Tutf8", "-P-cbou", f"-rLL={width}n", str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_warns_of_a_page(reader: str, pages: list[Path]) -> None:
    if shutil.which(reader) is None:
        pytest.skip(f"no {reader} on this machine")
    done = subprocess.run([*READERS[reader], *map(str, pages)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["sbpair", "sbpair-syphon", "sbpair-peek", "sbpair-replay", "sbpair-relay-send"])
def test_a_page_has_every_word_of_the_help(name: str, pages: list[Path]) -> None:
    def words(text: str) -> set[str]:
        return {word.rstrip(".:") for word in text.lower().split()}

    [page] = [page for page in pages if page.stem == name]
    assert words((GOLDEN / f"{name}.txt").read_text()) - words(rendered(page)) <= {"usage", "codes", "also"}


def test_an_example_can_be_copied_from_a_page(pages: list[Path]) -> None:
    [page] = [page for page in pages if page.stem == "sbpair-syphon"]
    assert """  sbpair syphon --once --where "path = 'orders' AND age < '1h'"\n""" in rendered(page)


def test_pages_refer_to_pages_that_exist(pages: list[Path]) -> None:
    named = {name for page in pages for name in re.findall(r"([a-z-]+)\(1\)", page.read_text().replace("\\-", "-"))}
    assert named == {page.stem for page in pages}


def test_the_page_of_a_command_is_printed(here: Here) -> None:
    code, out, _ = here("man", "replay", "run")
    assert (code, out.partition("\n")[2]) == (0, man_page(("replay", "run"), DATE).partition("\n")[2])
    assert json.loads(here("man", "-o", "json")[1])["page"].startswith('.TH "SBPAIR" "1" ')


def test_all_pages_are_stored_in_a_directory(here: Here, tmp_path: Path) -> None:
    code, out, _ = here("man", "--directory", str(tmp_path / "share"))
    stored = {page.stem for page in (tmp_path / "share/man1").iterdir()}
    assert (code, out) == (0, f"{len(stored)} pages in {tmp_path}/share/man1\n")
    assert stored == {page_name(path) for path in page_paths()}
