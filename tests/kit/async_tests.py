"""The hook that runs `async def` tests.

Each test, and each example of a property, runs in an event loop of its own. It fails if it takes too long, leaves a
task behind, or causes an error that reaches only the loop's exception handler. What such a test, or a command in this
process, leaves to the garbage collector is collected before it ends. A fixture that returns InLoop is opened in that
loop before the test, and closed after it.
"""

import asyncio
import functools
import gc
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.waiting import PATIENCE_SECONDS

MAX_COLLECTION_SECONDS = 0.02
LAST_TURNS = 20
"""Turns of the loop in which a closed connection's tasks may end."""

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class InLoop:
    """The value of a fixture whose asynchronous context the test enters; the test gets what that yields."""

    open: Callable[[], AbstractAsyncContextManager[Any]]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt what the imports made from collection: one after each test would take a tenth of a second otherwise."""
    _exempt_what_lives()


def _exempt_what_lives() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Exempt what lives between two tests, such as modules that a test imported, once it makes a collection slow."""
    if _Collection.seconds > MAX_COLLECTION_SECONDS:
        _exempt_what_lives()
        _Collection.seconds = 0.0


class _Collection:
    """How long the last one took."""

    seconds = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    marker = pyfuncitem.get_closest_marker("timeout_seconds")
    seconds = marker.args[0] if marker else PATIENCE_SECONDS
    unheard: list[str] = []
    with _synchronous(pyfuncitem, lambda test: _in_a_loop(test, seconds, unheard)) as found:
        result = yield
    if found or _may_leave_garbage(pyfuncitem):
        began = time.perf_counter()
        gc.collect()  # the error of a task that is not awaited comes up when the task is freed
        _Collection.seconds = time.perf_counter() - began
        if unheard:
            pytest.fail("errors reached only the event loop: " + "; ".join(unheard), pytrace=False)
    return result


def _may_leave_garbage(item: pytest.Function) -> bool:
    """Return whether the SDK may have left sockets, whose warnings belong to this test and not to a later one."""
    return "here" in item.fixturenames or item.get_closest_marker("filterwarnings") is not None


@contextmanager
def _synchronous(item: pytest.Function, wrap: Callable[[AsyncTest], Callable[..., None]]) -> Iterator[bool]:
    """Replace the item's function, or the one that Hypothesis calls for each example, if it is a coroutine function."""
    property_test = getattr(item.obj, "hypothesis", None)
    if property_test and inspect.iscoroutinefunction(property_test.inner_test):
        test = property_test.inner_test
        property_test.inner_test = wrap(test)
        try:
            yield True
        finally:
            property_test.inner_test = test  # the items of a parametrized test share it
    elif inspect.iscoroutinefunction(item.obj):
        item.obj = wrap(item.obj)
        yield True
    else:
        yield False


def _in_a_loop(test: AsyncTest, seconds: float, unheard: list[str]) -> Callable[..., None]:
    async def main(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        __tracebackhide__ = True
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(_described(context)))
        try:
            async with asyncio.timeout(seconds) as limit, AsyncExitStack() as stack:
                opened = {
                    name: await stack.enter_async_context(value.open()) if isinstance(value, InLoop) else value
                    for name, value in keywords.items()
                }
                await test(*arguments, **opened)
        except TimeoutError:
            if limit.expired():
                pytest.fail(f"the test took longer than {seconds} s")
            raise
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        if left := sorted(map(_name, filter(_is_left, asyncio.all_tasks()))):
            pytest.fail("tasks are left: " + "; ".join(left), pytrace=False)

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        __tracebackhide__ = True
        asyncio.run(main(arguments, keywords))

    return run


def _is_left(task: asyncio.Task[Any]) -> bool:
    """Ignore the running test, and the task of the Azure SDK that ends some seconds after its connection."""
    return task is not asyncio.current_task() and "AMQPClientAsync._keep_alive_async" not in _name(task)


def _name(task: asyncio.Task[Any]) -> str:
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', task.get_coro())})"


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return context["message"] + (f": {error!r}" if error else "")
