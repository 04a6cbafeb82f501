"""The hook for `async def` tests, in sessions of pytest that have nothing else."""

import pytest

pytest_plugins = ["pytester"]

HEADER = """
import asyncio
import pytest
from hypothesis import given, settings, strategies as st
"""


def outcome(pytester: pytest.Pytester, test: str, *lines: str, **counts: int) -> None:
    """Run a module with this test, and expect these lines in the output and these counts of outcomes."""
    pytester.makeini("[pytest]\nfilterwarnings = error\nmarkers = timeout_seconds(n): other than 240 s\n")
    pytester.makeconftest("from tests.kit.async_tests import pytest_pyfunc_call")
    pytester.makepyfile(HEADER + test)
    result = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(**counts)
    result.stdout.fnmatch_lines([f"*{line}*" for line in lines])


def test_a_coroutine_is_run_with_its_fixtures_and_parameters(pytester: pytest.Pytester) -> None:
    test = """
@pytest.mark.parametrize("name", ["a", "b"])
async def test_it(name, tmp_path):
    await asyncio.sleep(0)
    assert tmp_path.exists()
    assert name == "a"
"""
    outcome(pytester, test, "FAILED *test_it?b?*", passed=1, failed=1)


def test_a_task_that_is_left_fails_the_test_by_name(pytester: pytest.Pytester) -> None:
    test = """
async def waits():
    await asyncio.Event().wait()

async def test_it():
    global task
    task = asyncio.create_task(waits(), name="forgotten")
"""
    outcome(pytester, test, "tasks are left: forgotten (waits)", failed=1)


def test_a_task_that_ends_with_the_test_is_not_left(pytester: pytest.Pytester) -> None:
    test = """
async def ends():
    await asyncio.sleep(0)

async def test_it():
    global task
    task = asyncio.create_task(ends())
"""
    outcome(pytester, test, passed=1)


def test_the_keep_alive_task_of_the_azure_sdk_may_be_left(pytester: pytest.Pytester) -> None:
    test = """
class AMQPClientAsync:
    async def _keep_alive_async(self):
        await asyncio.Event().wait()

async def test_it():
    global task
    task = asyncio.create_task(AMQPClientAsync()._keep_alive_async())
"""
    outcome(pytester, test, passed=1)


def test_a_test_that_hangs_times_out_where_it_waits(pytester: pytest.Pytester) -> None:
    test = """
@pytest.mark.timeout_seconds(0.01)
async def test_it():
    await asyncio.Event().wait()
"""
    outcome(pytester, test, "*await asyncio.Event().wait()", "the test took longer than 0.01 s", failed=1)


def test_a_time_out_of_the_test_itself_is_no_hang(pytester: pytest.Pytester) -> None:
    test = """
async def test_it():
    raise TimeoutError("its own")
"""
    outcome(pytester, test, "TimeoutError: its own", failed=1)


@pytest.mark.parametrize(
    "held",
    [
        pytest.param("task = None", id="freed while the loop runs"),
        pytest.param("cycle = [task]; cycle += [cycle]", id="later"),
    ],
)
def test_an_error_that_nothing_awaits_fails_the_test(pytester: pytest.Pytester, held: str) -> None:
    test = f"""
async def breaks():
    raise ZeroDivisionError("unheard")

async def test_it():
    task = asyncio.create_task(breaks())
    await asyncio.sleep(0)
    {held}
"""
    outcome(pytester, test, "errors reached only the event loop: *ZeroDivisionError('unheard')", failed=1)


def test_a_coroutine_that_is_never_awaited_fails_the_test(pytester: pytest.Pytester) -> None:
    test = """
async def test_it():
    asyncio.sleep(0)
"""
    outcome(pytester, test, "*coroutine 'sleep' was never awaited", failed=1)


def test_each_example_of_a_property_has_its_own_loop(pytester: pytest.Pytester) -> None:
    test = """
loops = []

@pytest.mark.parametrize("name", ["a", "b"])
@settings(max_examples=5)
@given(number=st.integers())
async def test_it(name, number):
    await asyncio.sleep(0)
    assert asyncio.get_running_loop() not in loops
    loops.append(asyncio.get_running_loop())

def test_there_were_several():
    assert len(loops) > 2
"""
    outcome(pytester, test, passed=3)


@pytest.mark.parametrize(
    ("seconds", "body", "line"),
    [
        (30, "assert number < 10", "number=10,"),
        (30, "tasks.append(asyncio.create_task(asyncio.Event().wait(), name='left'))", "tasks are left: left*"),
        (0.01, "number < 10 or await asyncio.Event().wait()", "the test took longer than 0.01 s"),
    ],
)
def test_an_example_of_a_property_fails_as_a_test_does(
    pytester: pytest.Pytester, seconds: float, body: str, line: str
) -> None:
    test = f"""
tasks = []

@pytest.mark.timeout_seconds({seconds})
@settings(max_examples=20, deadline=None, database=None)
@given(number=st.integers(0, 1000))
async def test_it(number):
    await asyncio.sleep(0)
    {body}
"""
    outcome(pytester, test, line, failed=1)
