"""The conformance table against the emulator: every check passes, failures are counted, nothing is left behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sbpair.emulator
from sbpair.testing import EmulatorOptions
from tests.conformance import samples
from tests.conformance.__main__ import MODULES, VARIABLE, main
from tests.conformance.bench import NotAConnectionString, Service
from tests.conformance.registry import AREAS, ASSUMPTION_CHECKS, JAVASCRIPT_CHECKS, PYTHON_CHECKS, SAMPLES
from tests.conformance.report import Outcome, markdown
from tests.conformance.runs import SCRIPT
from tests.emulator.strict_http import _strict_http
from tests.kit.running import Running

__all__ = ["_strict_http"]

README = (Path(sbpair.emulator.__file__).parent / "README.md").read_text()
ROOT = Path(__file__).parents[2]
SECRET = "c2VjcmV0LW9mLXRoaXMtdGVzdA=="
RUN_SECONDS = 240


def run(*arguments: str, seconds: float = RUN_SECONDS, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "tests.conformance", *arguments],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def entities_of(running: Running) -> Sequence[object]:
    return running.do(lambda: [*running.namespace.queues(), *running.namespace.topics()])


def test_the_readme_shows_the_table_of_a_run_in_which_all_passes() -> None:
    """The next test shows that all of it passes."""
    assert len(MODULES) == 4
    checks = sorted([*ASSUMPTION_CHECKS, *PYTHON_CHECKS, *JAVASCRIPT_CHECKS], key=lambda check: AREAS.index(check.area))
    assert markdown([Outcome.of(check, None) for check in checks]) in README


def test_every_check_passes_on_the_emulator_and_nothing_stays(another: Any) -> None:
    with another() as running:
        done = run(running.connection_string, "--output", "json")
        assert entities_of(running) == []
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert [check for check in document["checks"] if not check["passed"]] == []
    # Without Node.js, those in Python are checked.
    in_javascript = [] if "JavaScript is not checked" in done.stderr else JAVASCRIPT_CHECKS
    assert (document["passed"], document["failed"]) == (len([*ASSUMPTION_CHECKS, *PYTHON_CHECKS, *in_javascript]), 0)
    assert all(check["source"].startswith("https://") for check in document["checks"] if check["language"] != "sbpair")


@pytest.fixture
def published() -> Path:
    """The directory of the SDK's samples."""
    try:
        return samples.published()
    except samples.NotFetched as error:
        pytest.skip(str(error))


@pytest.mark.samples
@pytest.mark.usefixtures("published")
def test_every_published_sample_ends_well(another: Any) -> None:
    with another(options=EmulatorOptions(identity=True)) as running:
        identity = running.emulator.ready.identity.environment
        seconds = len(samples.SAMPLES) * samples.SAMPLE_SECONDS
        words = (running.connection_string, "--samples", "--area", SAMPLES, "--output", "json")
        done = run(*words, seconds=seconds, **identity)
    checks = json.loads(done.stdout)["checks"]
    assert [check for check in checks if not check["passed"]] == []
    assert len(checks) == len(samples.SAMPLES)


@pytest.mark.samples
def test_every_published_sample_is_run_or_there_is_a_reason(published: Path) -> None:
    there = {f"{path.parent.name}/{path.stem}" for path in published.glob("*/*.py")}
    assert there == {*samples.SAMPLES, *samples.UNRUN}


def test_each_check_of_the_script_is_in_the_table() -> None:
    names = re.findall(r'^  "([^"]+)": async', SCRIPT.read_text(), flags=re.MULTILINE)
    assert sorted(names) == sorted(check.name for check in JAVASCRIPT_CHECKS)


@pytest.mark.parametrize("output", ["text", "json", "markdown"])
def test_a_failed_check_is_named_with_its_source_and_ends_with_3(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Running([("contoso", 0, "basic")]) as running:
        monkeypatch.setenv(VARIABLE, running.connection_string)
        code = main(["--area", "duplicates", "--output", output])
        assert entities_of(running) == []
    out, err = capsys.readouterr()
    assert code == 3, out + err
    assert "a partitioned queue compares the partition key too" in out
    assert "duplicate-detection" in out
    if output == "json":
        document = json.loads(out)
        assert (document["passed"], document["failed"]) == (0, 1)
        assert "'Basic' Tier" in document["checks"][0]["error"]


def address(host: str = "127.0.0.1:1", key: str = SECRET, more: str = "") -> str:
    return f"Endpoint=sb://{host};SharedAccessKeyName=name;SharedAccessKey={key};UseDevelopmentEmulator=true{more}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        SECRET,
        "Endpoint=sb://h",
        f"SharedAccessKeyName=n;SharedAccessKey={SECRET}",
        f"Endpoint=h;SharedAccessKey={SECRET}",
        f"Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey={SECRET};EntityPath=orders",
        f"Endpoint=sb://h;SharedAccessSignature={SECRET}",
        "a=b;c",
    ],
)
def test_a_wrong_connection_string_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(NotAConnectionString) as refused:
        Service.read(text)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_service_never_shows_its_key() -> None:
    service = Service.read(address())
    assert SECRET not in repr(service)
    assert service.redact(f"no {SECRET}!") == "no ***!"
    assert Service.read(address(), "http://localhost:5300/").management_connection_string.startswith(
        "Endpoint=sb://localhost:5300;"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "expected a connection string"),
        (["nonsense"], 2, "expected the connection string of a namespace"),
        ([address(), "--output", "xml"], 2, "invalid choice: 'xml'"),
        ([address(), "--area", "send", "--area", "mars"], 2, "invalid choice: 'mars'"),
        ([address(), "--management", "foo"], 2, "--management: expected a URL such as http://localhost:5300"),
        ([address(), "--management", "localhost:5300"], 2, "expected a URL such as http://localhost:5300"),
        ([address(), "--management", address()], 2, "expected a URL such as http://localhost:5300"),
        ([address(), "--samples", "--area", "send"], 2, "add --area samples, or leave --area out"),
        ([address(), "--area", "samples"], 2, "--area samples checks nothing without --samples: add it"),
        ([address(), address()], 2, "too many arguments"),
        ([address(), "--outptu", SECRET], 2, "too many arguments"),
        ([address()], 6, "http://127.0.0.1:1: Cannot connect"),
    ],
)
def test_wrong_arguments_are_refused_without_the_key(
    arguments: list[str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    try:
        ended = main(arguments)
    except SystemExit as end:
        ended = end.code
    out, err = capsys.readouterr()
    assert ended == code, err
    assert words in err
    assert SECRET not in out + err


def test_a_wrong_key_is_refused_without_the_key(another: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with another() as running:
        code = main([running.connection_string.replace("SAS_KEY_VALUE", SECRET)])
    out, err = capsys.readouterr()
    assert code == 6
    assert "InvalidSignature" in err
    assert SECRET not in out + err
