"""The pytest plugin, found by its entry point in real runs of pytest."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.plugin import install_plugin

pytest_plugins = ["pytester"]

SAMPLES = Path(__file__).with_name("samples.py").read_text()
CONFIG = '{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "queue.1"}]}]}} // its end'
WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")
"""Its plugin takes longer to load than all else of a run."""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run pytest on a file, where sbpair is installed with the entry points of pyproject.toml."""
    env = install_plugin(pytester.path / "installed")
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])

    def run_file(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text if "import pytest" in text else f"import pytest\n{text}")
        return pytester.runpytest_subprocess(*WITHOUT_HYPOTHESIS, "--strict-markers", "-W", "error", *options)

    return run_file


def messages(result: pytest.RunResult) -> str:
    return result.stdout.str()


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param((), id="one process"),
        # The next test has workers too.
        pytest.param(("-n", "2", "--dist", "loadscope"), id="xdist", marks=pytest.mark.slow),
    ],
)
def test_tests_of_a_user_pass(run: Callable, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    (pytester.path / "Config.json").write_text(CONFIG)
    run(SAMPLES, *workers).assert_outcomes(passed=14)


def test_workers_of_xdist_have_namespaces_of_their_own(run: Callable) -> None:
    result = run(
        """
import os

@pytest.mark.service_bus(queues=["orders"])
@pytest.mark.parametrize("run", range(4))
def test_it(service_bus, service_bus_session, run):
    service_bus_session.declare(queues=[f"of-{os.environ['PYTEST_XDIST_WORKER']}"])
    queues = service_bus_session.thread.emulator.namespaces["contoso"].queues()
    assert [each.path for each in queues] == [f"of-{os.environ['PYTEST_XDIST_WORKER']}", "orders"]
    assert service_bus.counts("orders").total == 0
""",
        "-n",
        "2",
    )
    result.assert_outcomes(passed=4)


WRONG_MARKS = [
    ("'orders'", "takes queues, topics and config by name"),
    ("queue=['orders']", "queue: unknown property; expected queues"),
    ("entities=5", "entities: unknown property; expected one of queues, topics, hybrid_connections, config"),
    ("queues='orders'", "queues: expected names, or a mapping of names"),
    ("queues=5", "queues: expected names, or a mapping of names"),
    ("queues=['a b']", "Queues[0].Name: 'a b' contains character"),
    ("queues=[5]", "Queues[0].Name: expected text, got a whole number"),
    ("queues=['a', 'A']", "Queues[1].Name: the name 'A' is used twice"),
    ("queues={'a': 'PT1M'}", "Queues[0].Properties: expected an object, got text"),
    ("queues={'a': {'lock_duraton': 1}}", "Queues[0].Properties.LockDuraton: unknown property; expected LockDuration"),
    ("queues={'a': {'lock_duration': 'PT9M'}}", "Queues[0].Properties.LockDuration: The value of LockDuration is not"),
    ("queues={'a': {'forward_to': 'b'}}", "Queues[0].Properties.ForwardTo: there is no queue or topic 'b'"),
    ("queues={'a': {'lock_duration': 'PT5S', 'LockDuration': 'PT5S'}}", "queues.a.LockDuration: the same property as"),
    ("topics={'t': {'a': {'status': '', 'Status': ''}}}", "topics.t.a.Status: the same property as status; give one"),
    ("topics=['news']", "topics: expected a mapping of topics to subscriptions, such as"),
    ("topics={'news': 'audit'}", "topics.news: expected names, or a mapping of names"),
    (
        "topics={'news': {'audit': 'color = = 1'}}",
        "Topics[0].Subscriptions[0].Rules[0].Properties.SqlFilter.SqlExpression",
    ),
    ("topics={'news': {'audit': 5}}", "Topics[0].Subscriptions[0].Properties: expected an object, got a whole number"),
    ("hybrid_connections=['a'], queues=['A']", "the name"),
    ("hybrid_connections={'a': {'lock_duration': 'PT1M'}}", "LockDuration: unknown property"),
    ("config='nowhere.json'", "nowhere.json cannot be read: No such file or directory"),
    ("config='.'", "cannot be read: Is a directory"),
    ("config=5", "config: expected the path of a file"),
    ("config='x', queues=['a']", "config: does not go with queues and topics"),
    ("config='wrong.json'", "wrong.json:1:1: not JSON: Expecting value"),
    ("config='two.json'", "config: two.json has several namespaces"),
    ("config='faulty.json'", "faulty.json: UserConfig.Namespaces[0].Queue: unknown property; expected Queues"),
]


def test_a_wrong_mark_fails_its_test_with_its_place(run: Callable, pytester: pytest.Pytester) -> None:
    (pytester.path / "wrong.json").write_text("UserConfig")
    (pytester.path / "two.json").write_text('{"UserConfig": {"Namespaces": [{"Name": "one"}, {"Name": "two"}]}}')
    (pytester.path / "faulty.json").write_text('{"UserConfig": {"Namespaces": [{"Name": "one", "Queue": []}]}}')
    tests = [
        f"@pytest.mark.service_bus({arguments})\ndef test_{number:02}(service_bus): ..."
        for number, (arguments, _) in enumerate(WRONG_MARKS)
    ]
    result = run("\n".join(tests))
    result.assert_outcomes(errors=len(WRONG_MARKS))
    for number, (_, message) in enumerate(WRONG_MARKS):
        found = re.findall(rf"^@pytest.mark.service_bus of \S+::test_{number:02}: (.*)", messages(result), re.MULTILINE)
        assert len(found) == 1
        assert message in found[0]
    assert "Traceback" not in messages(result)
    assert "During handling" not in messages(result)
    assert "sbpair/testing" not in messages(result)


def test_two_definitions_of_one_queue_are_refused(run: Callable) -> None:
    result = run(
        """
from datetime import timedelta

@pytest.mark.service_bus(queues=["orders"])
def test_first(service_bus_session): ...

@pytest.mark.service_bus(queues={"orders": {"requires_session": True}})
def test_second(service_bus_session): ...

@pytest.mark.service_bus(queues={"orders": {"lock_duration": "PT5S"}})
@pytest.mark.service_bus(queues={"orders": {"lock_duration": "PT10S"}})
def test_function(service_bus): ...

class TestClass:
    pytestmark = [pytest.mark.service_bus(topics={"news": {"a": sql}}) for sql in ("a = 1", "a = 2")]

    def test_method(self, service_bus): ...

@pytest.mark.service_bus(queues={"orders": {"lock_duration": "PT5S"}})
@pytest.mark.service_bus(queues={"Orders": {"LockDuration": timedelta(seconds=5)}})
def test_agreed(service_bus): ...
"""
    )
    result.assert_outcomes(errors=4, passed=1)
    found = messages(result)
    assert "::test_first" in found
    assert "::test_second: queue 'orders' is declared otherwise above, by " in found
    assert "::test_function: queue 'orders' is declared otherwise in another mark of test_function" in found
    assert "::test_method: subscription 'news/a' is declared otherwise in another mark of TestClass" in found


def test_the_mark_and_the_fixtures_are_described(run: Callable) -> None:
    assert "@pytest.mark.service_bus(queues=[], topics={}, hybrid_connections=[], config=None)" in messages(
        run("", "--markers")
    )
    described = messages(run("", "--fixtures"))
    for name in ("service_bus", "service_bus_pair", "service_bus_session [session scope]"):
        assert f"\n{name} -- " in described


def test_the_plugin_can_be_switched_off(run: Callable) -> None:
    result = run("def test_it(service_bus): ...", "-p", "no:sbpair")
    result.assert_outcomes(errors=1)
    assert "fixture 'service_bus' not found" in messages(result)


def test_the_plugin_alone_loads_neither_emulator_nor_clients(run: Callable) -> None:
    result = run(
        """
def test_it():
    import sys
    heavy = ("aiohttp", "lark", "cryptography")
    assert [name for name in sys.modules if name.startswith(heavy)] == []
    assert sorted(name for name in sys.modules if name.startswith("sbpair")) == [
        "sbpair", "sbpair.errors", "sbpair.public_names", "sbpair.testing", "sbpair.testing.plugin"
    ]
"""
    )
    result.assert_outcomes(passed=1)
