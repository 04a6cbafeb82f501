"""The pytest plugin, found by its entry point in real runs of pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.plugin import install_plugin

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
CLIENT = """
import asyncio
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient

def exchange(connection_string, queue, receive_from=None):
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with client.get_queue_receiver(receive_from or queue) as receiver:
            [message] = receiver.receive_messages(max_wait_time=5)
            receiver.complete_message(message)
    return str(message)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run pytest on a file, where sbpair is installed with the entry points of pyproject.toml."""
    env = install_plugin(pytester.path / "installed")
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])

    def run_file(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(CLIENT + text)
        return pytester.runpytest_subprocess("--strict-markers", "-W", "error", *options)

    return run_file


def messages(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_three_lines_are_enough(run: Callable) -> None:
    result = run(
        """
@pytest.mark.service_bus(queues=["orders"])
def test_it(service_bus):
    assert exchange(service_bus.connection_string, "orders") == "one"
"""
    )
    result.assert_outcomes(passed=1)


def test_each_test_has_a_namespace_of_its_own(run: Callable) -> None:
    result = run(
        """
pytestmark = pytest.mark.service_bus(queues=["orders"])

@pytest.mark.parametrize("run", [1, 2])
def test_it(service_bus, run):
    assert service_bus.counts("orders").total == 0
    with ServiceBusClient.from_connection_string(service_bus.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("left behind"))
    assert service_bus.counts("orders").active == 1

def test_without_entities_of_its_own(service_bus):
    service_bus.declare(queues=["more"])
    assert exchange(service_bus.connection_string, "more") == "one"
    assert service_bus.name == "contoso"
"""
    )
    result.assert_outcomes(passed=3)


def test_a_session_shares_a_namespace_with_the_entities_of_all(run: Callable) -> None:
    result = run(
        """
@pytest.mark.service_bus(queues=["orders"])
def test_first(service_bus_session):
    with ServiceBusClient.from_connection_string(service_bus_session.connection_string) as client:
        with client.get_queue_sender("bills") as sender:
            sender.send_messages(ServiceBusMessage("for the next"))

@pytest.mark.service_bus(queues=["bills"])
def test_second(service_bus_session):
    assert service_bus_session.counts("bills").active == 1
    assert service_bus_session.counts("orders").active == 0

@pytest.mark.service_bus(queues=["elsewhere"])
def test_third(service_bus, service_bus_pair_session):
    assert service_bus_pair_session.secondary.counts("elsewhere").active == 0
    with pytest.raises(Exception, match="could not be found"):
        service_bus.counts("bills")
"""
    )
    result.assert_outcomes(passed=3)


def test_a_pair_has_the_entities_on_both_sides(run: Callable) -> None:
    result = run(
        """
from sbpair import load_pair

@pytest.mark.service_bus(queues=["orders"])
def test_it(service_bus_pair):
    primary, secondary = service_bus_pair
    assert (primary.name, secondary.name) == ("contoso", "contoso-dr")
    assert exchange(primary.connection_string, "orders") == "one"
    assert exchange(secondary.connection_string, "orders") == "one"
    pair = load_pair(environ=service_bus_pair.environ)
    assert (pair.primary.name, pair.secondary.name) == ("contoso", "contoso-dr")
    assert pair.secondary.authority in secondary.connection_string
"""
    )
    result.assert_outcomes(passed=1)


def test_entities_have_properties_subscriptions_and_filters(run: Callable) -> None:
    result = run(
        """
from datetime import timedelta

@pytest.mark.service_bus(
    queues={"orders": {"lock_duration": timedelta(seconds=10), "forward_to": "all"}, "all": {"MaxDeliveryCount": 2}},
    topics={"news": {"audit": {"requires_session": True}, "red": "color = 'red'"}, "plain": ["one", "two"], "none": []},
)
def test_it(service_bus):
    assert exchange(service_bus.connection_string, "orders", "all") == "one"
    emulated = service_bus.thread.emulator.namespaces["contoso"]
    assert emulated.queue("orders").description.lock_ms == 10_000
    assert emulated.queue("orders").description.max_delivery_count == 10
    assert emulated.queue("all").description.max_delivery_count == 2
    assert emulated.topic("news").subscription("audit").description.requires_session
    assert emulated.topic("news").subscription("red").rules[0].filter.expression == "color = 'red'"
    assert [each.name for each in emulated.topic("plain").subscriptions] == ["one", "two"]
    assert service_bus.counts("plain/subscriptions/two").total == 0
"""
    )
    result.assert_outcomes(passed=1)


def test_marks_of_a_class_and_a_function_add_up(run: Callable) -> None:
    result = run(
        """
@pytest.mark.service_bus(queues={"orders": {"max_delivery_count": 5}, "bills": {}}, topics={"news": ["one"]})
class TestAll:
    @pytest.mark.service_bus(queues={"orders": {"max_delivery_count": 2}}, topics={"news": ["two"]})
    def test_it(self, service_bus):
        emulated = service_bus.thread.emulator.namespaces["contoso"]
        assert emulated.queue("orders").description.max_delivery_count == 2
        assert emulated.queue("bills").description.max_delivery_count == 10
        assert [each.name for each in emulated.topic("news").subscriptions] == ["one", "two"]
"""
    )
    result.assert_outcomes(passed=1)


def test_a_configuration_file_is_found_beside_the_test(run: Callable, pytester: pytest.Pytester) -> None:
    config = '{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "queue.1"}]}]}} // its end'
    (pytester.path / "Config.json").write_text(config)
    result = run(
        """
@pytest.mark.service_bus(config="Config.json")
def test_it(service_bus):
    assert exchange(service_bus.connection_string, "queue.1") == "one"
    queue = service_bus.thread.emulator.namespaces["contoso"].queue("queue.1")
    assert queue.description.max_delivery_count == 3
"""
    )
    result.assert_outcomes(passed=1)


def test_faults_and_the_clock_are_at_hand(run: Callable) -> None:
    result = run(
        """
from azure.servicebus.exceptions import ServiceBusError

@pytest.mark.service_bus(queues=["orders"])
def test_it(service_bus):
    with ServiceBusClient.from_connection_string(service_bus.connection_string, retry_total=0) as client:
        with client.get_queue_sender("orders") as sender:
            with service_bus.fault("throttle", entity="orders", count=1):
                with pytest.raises(ServiceBusError):
                    sender.send_messages(ServiceBusMessage("refused"))
            sender.send_messages(ServiceBusMessage("accepted"))
        with client.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(max_wait_time=5)
            service_bus.advance(60_000)
            [again] = receiver.receive_messages(max_wait_time=5)
            assert again.delivery_count == 1
"""
    )
    result.assert_outcomes(passed=1)


ASYNC = """
@pytest.mark.service_bus(queues=["orders"])
def test_in_a_loop(service_bus):
    async def scenario():
        async with AsyncClient.from_connection_string(service_bus.connection_string) as client:
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("one"))
            assert service_bus.counts("orders").active == 1
            async with client.get_queue_receiver("orders") as receiver:
                [message] = await receiver.receive_messages(max_wait_time=5)
                await receiver.complete_message(message)
    asyncio.run(scenario())
    assert service_bus.counts("orders").active == 0
"""


def test_the_tests_may_run_a_loop_of_their_own(run: Callable) -> None:
    run(ASYNC).assert_outcomes(passed=1)


def test_workers_of_xdist_have_namespaces_of_their_own(run: Callable) -> None:
    result = run(
        """
@pytest.mark.service_bus(queues=["orders"])
@pytest.mark.parametrize("run", range(6))
def test_it(service_bus, service_bus_session, run):
    assert exchange(service_bus.connection_string, "orders") == "one"
    assert exchange(service_bus_session.connection_string, "orders") == "one"
""",
        "-n",
        "2",
    )
    result.assert_outcomes(passed=6)


WRONG_MARKS = [
    ("'orders'", "takes queues, topics and config by name"),
    ("queue=['orders']", "queue: unknown property; expected queues"),
    ("entities=5", "entities: unknown property; expected one of queues, topics, config"),
    ("queues='orders'", "queues: expected names, or a mapping of names"),
    ("queues=5", "queues: expected names, or a mapping of names"),
    ("queues=['a b']", "Queues[0].Name: 'a b' contains characters that are not allowed"),
    ("queues=[5]", "Queues[0].Name: expected text, got a whole number"),
    ("queues=['a', 'A']", "Queues[1].Name: the name 'A' is used twice"),
    ("queues={'a': 'PT1M'}", "Queues[0].Properties: expected an object, got text"),
    ("queues={'a': {'lock_duraton': 1}}", "Queues[0].Properties.LockDuraton: unknown property; expected LockDuration"),
    ("queues={'a': {'lock_duration': 'PT9M'}}", "Queues[0].Properties.LockDuration: The value of LockDuration is not"),
    ("queues={'a': {'forward_to': 'b'}}", "Queues[0].Properties.ForwardTo: there is no queue or topic 'b'"),
    ("topics={'news': 'audit'}", "topics.news: expected names, or a mapping of names"),
    (
        "topics={'news': {'audit': 'color = = 1'}}",
        "Topics[0].Subscriptions[0].Rules[0].Properties.SqlFilter.SqlExpression",
    ),
    ("topics={'news': {'audit': 5}}", "Topics[0].Subscriptions[0].Properties: expected an object, got a whole number"),
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
    assert "sbpair/testing" not in messages(result)


def test_two_definitions_of_one_queue_in_a_session_are_refused(run: Callable) -> None:
    result = run(
        """
@pytest.mark.service_bus(queues=["orders"])
def test_first(service_bus_session): ...

@pytest.mark.service_bus(queues={"orders": {"requires_session": True}})
def test_second(service_bus_session): ...
"""
    )
    result.assert_outcomes(errors=2)
    assert "::test_second: queue 'orders' is declared otherwise above" in messages(result)


def test_the_mark_and_the_fixtures_are_described(run: Callable) -> None:
    assert "@pytest.mark.service_bus(queues=[], topics={}, config=None)" in messages(run("", "--markers"))
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
    heavy = ("aiohttp", "lark", "cryptography", "sbpair.emulator")
    assert [name for name in sys.modules if name.startswith(heavy)] == []
    assert "sbpair.testing.plugin" in sys.modules
"""
    )
    result.assert_outcomes(passed=1)


def test_the_plugin_imports_only_errors_of_the_package() -> None:
    program = "import sys, sbpair.testing.plugin; print(*sorted(n for n in sys.modules if n.startswith('sbpair')))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["sbpair", "sbpair.errors", "sbpair.testing", "sbpair.testing.plugin"]
