"""What each kind of step does to a simulated world, and how it is undone. One function a kind, as in the emulator.

A kind that the emulator has itself is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp_server.refusals import ServiceError
from sbpair.backlog import queue_path, queue_spec
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.faults.fault_points import Fault
from sbpair.timespan import TICKS_PER_MINUTE
from tests.faults.simulation.plan import EMULATOR
from tests.faults.simulation.workload import NARROW, NARROW_KILOBYTES, TOPIC, Goal

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from tests.faults.simulation.plan import Step
    from tests.faults.simulation.run import SyphonSimulation

PRIMARY_NAME: Final = "contoso"

CRASHES: Final = (None, "arrived", "arrived", "complete", "locked", "known to have arrived")
"""The moments of a crash, as the history tells them; over real sockets, it does not tell the last one."""


def make_backlog(namespace: Namespace, index: int) -> Any:
    spec = queue_spec(PRIMARY_NAME, index)
    description = QueueDescription(
        lock_duration=TICKS_PER_MINUTE,
        max_size_in_megabytes=spec.max_size_in_megabytes,
        max_delivery_count=spec.max_delivery_count,
        dead_lettering_on_message_expiration=True,
    )
    return namespace.create_queue(spec.path, description)


def make_goal(namespace: Namespace, goal: Goal) -> Any:
    if goal.kind == TOPIC:
        topic = namespace.create_topic(goal.name)
        topic.create_subscription("all")
        topic.create_subscription("too")
        return topic
    description = QueueDescription(
        requires_session=goal.wants_session,
        requires_duplicate_detection=goal.detects_duplicates,
        enable_partitioning=goal.is_partitioned,
    )
    queue = namespace.create_queue(goal.name, description)
    if goal.kind == NARROW:
        queue.update(replace(queue.description, max_message_size_in_kilobytes=NARROW_KILOBYTES))
    return queue


def find_goal(namespace: Namespace, name: str) -> Any:
    return namespace.find_queue(name) or namespace.find_topic(name)


def entity_of(step: Step) -> str | None:
    return queue_path(PRIMARY_NAME, step.entity) if isinstance(step.entity, int) else step.entity


def fault_of(step: Step, namespace: str) -> Fault:
    """What the emulator is asked for."""
    numbers: dict[str, Any] = {}
    if step.kind in ("drop", "stall", "reset"):
        numbers = {"after_frames": step.number, "count": step.count}
    elif step.kind in ("swallow-acks", "throttle"):
        numbers = {"count": step.count}
    elif step.kind in ("latency", "clock"):
        numbers = {"ms": step.number}
    elif step.kind == "partition-down":
        numbers = {"partition": step.number}
    return Fault(step.kind, namespace, entity_of(step), **numbers)


@contextmanager
def emulated(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """Whatever the emulator can do. What its entity is too late for does not happen."""
    name = stage.world.primary.name if step.primary else stage.world.secondary.name
    try:
        identity = stage.world.faults.begin(fault_of(step, name))
    except ServiceError:
        yield
        return
    try:
        yield
    finally:
        stage.world.faults.end(identity)


@contextmanager
def quota(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """The entity is full."""
    name = str(step.entity)
    stage.history.full.add(name)
    yield
    stage.history.full.discard(name)


@contextmanager
def disable(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    _set_status(stage, str(step.entity), "SendDisabled")
    yield
    _set_status(stage, str(step.entity), "Active")


def _set_status(stage: SyphonSimulation, name: str, status: str) -> None:
    queue = find_goal(stage.world.primary, name)
    if queue is not None:
        queue.update(replace(queue.description, status=status))


@contextmanager
def destination_gone(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    goal = next(goal for goal in stage.plan.goals if goal.name == step.entity)
    primary = stage.world.primary
    stage.course.missing.add(goal.name.lower())
    found = find_goal(primary, goal.name)
    if found is not None:
        found.delete()
    yield
    if find_goal(primary, goal.name) is None:
        stage.history.watch_primary(make_goal(primary, goal))


@contextmanager
def backlog_remade(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """The numbers begin anew, and what was in it is gone with it."""
    assert isinstance(step.entity, int)
    secondary, path = stage.world.secondary, queue_path(PRIMARY_NAME, step.entity)
    queue = secondary.find_queue(path)
    if queue is not None:
        stage.history.deleted(queue)
        secondary.delete_queue(path)
    yield
    if secondary.find_queue(path) is None:
        queue = make_backlog(secondary, step.entity)
        stage.history.watch_backlog(queue)
        stage.history.strand(queue, [replace(each, queue=step.entity) for each in step.messages])


@contextmanager
def strand(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    for each in step.messages:
        queue = stage.world.secondary.find_queue(queue_path(PRIMARY_NAME, each.queue))
        if queue is not None:
            stage.history.strand(queue, [each])
    yield


@contextmanager
def crash(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """Now, or at the next moment of a kind: such as when the primary has a message, and nobody knows of it yet."""
    moment = CRASHES[step.number % len(CRASHES)]
    if moment is None:
        stage.kill()
        yield
        return
    with stage.history.awaiting(moment, stage.kill_soon):
        yield


def freeze(stage: SyphonSimulation, step: Step) -> AbstractContextManager[None]:
    """The machine of the syphon stands still, and its clock does not."""
    return stage.freeze(step)


@contextmanager
def stop(stage: SyphonSimulation, _: Step) -> Iterator[None]:
    stage.ask_to_stop()
    yield


@contextmanager
def second(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """Another syphon at the same queues, without the lease: of the same machine, or from one of its own."""
    other = stage.start(once=step.number % 2 == 0, second=True, apart=step.number % 3 > 0)
    yield
    other.stop.set()


@contextmanager
def hold(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """Bytes stay where they are, both ways."""
    stage.network.hold(_host(stage, step))
    yield
    stage.network.let_go(_host(stage, step))


@contextmanager
def cut(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """A connection breaks behind the n-th byte from now."""
    lines = stage.network.lines_to(_host(stage, step))
    if lines:
        line = lines[step.number % len(lines)]
        pipe = line.client.out if step.number % 2 else line.server.out
        pipe.cut_after = step.number % 3_000
    yield


@contextmanager
def silence(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """A connection is half dead: what is said in one direction is never heard."""
    lines = stage.network.lines_to(_host(stage, step))
    if lines:
        line = lines[step.number % len(lines)]
        (line.client if step.number % 2 else line.server).out.silent = True
    yield


@contextmanager
def refuse(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    with _counted(stage.network.refusing, _host(stage, step)):
        yield


@contextmanager
def no_answer(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    with _counted(stage.network.swallowing, _host(stage, step)):
        yield


@contextmanager
def tool_clock(stage: SyphonSimulation, step: Step) -> Iterator[None]:
    """The clock of the tool's machine is set, forward or back."""
    stage.world.ahead += step.number / 1000
    yield


@contextmanager
def _counted(counts: dict[str, int], name: str) -> Iterator[None]:
    counts[name] = counts.get(name, 0) + 1
    yield
    counts[name] -= 1


def _host(stage: SyphonSimulation, step: Step) -> str:
    return stage.world.primary.name if step.primary else stage.world.secondary.name


KINDS: Final[dict[str, Callable[[SyphonSimulation, Step], AbstractContextManager[None]]]] = {
    **dict.fromkeys(EMULATOR, emulated),
    "quota": quota,
    "disable": disable,
    "destination-gone": destination_gone,
    "backlog-remade": backlog_remade,
    "strand": strand,
    "crash": crash,
    "freeze": freeze,
    "stop": stop,
    "second": second,
    "hold": hold,
    "cut": cut,
    "silence": silence,
    "refuse": refuse,
    "no-answer": no_answer,
    "tool-clock": tool_clock,
}
