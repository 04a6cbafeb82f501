"""Plans of an application's own entities: the missing ones in order, and no others."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from sbpair.management.comparison import (
    Change,
    Key,
    Plan,
    dependency_order,
    differences,
    entity_key,
    external_targets,
    needs,
    plan_entities,
)
from sbpair.model.entities import (
    DEFAULT_RULE,
    AnyEntity,
    CorrelationFilter,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.queues import Difference
from sbpair.model.report import Outcome

DEFAULT = Rule("", "", DEFAULT_RULE)


class Namespace:
    """A namespace like the service's: names in any case, and a default rule for new subscriptions."""

    def __init__(self, there: list[AnyEntity]) -> None:
        self.entities: dict[Key, AnyEntity] = {}
        for entity in there:
            self.create(entity)

    def create(self, entity: AnyEntity) -> None:
        assert entity_key(entity) not in self.entities, "a plan creates nothing that is there"
        assert all(need in self.entities for need in needs(entity)), "what is needed comes first"
        self.entities[entity_key(entity)] = entity
        if isinstance(entity, Subscription):
            own = replace(DEFAULT, topic=entity.topic, subscription=entity.name)
            self.entities[entity_key(own)] = own

    def plan(self, wanted: list[AnyEntity]) -> Plan:
        return plan_entities(wanted, self.entities)

    def apply(self, made: Plan) -> None:
        for change in made.creates:
            assert isinstance(change.entity, AnyEntity)
            self.create(change.entity)
        for rule in made.default_rules:
            del self.entities[entity_key(rule)]


def existing(plan: Plan) -> list[Change]:
    return [each for each in plan.changes if each.kind is not Outcome.MISSING]


NAMES = st.sampled_from(["a", "b", "C", "d/e"])
TARGETS = st.sampled_from(["", "a", "b", "C", "d/e"])
SHORT = st.sampled_from(["one", "Two", "three"])


@st.composite
def layouts(draw: st.DrawFn) -> list[AnyEntity]:
    """Entities that fit together: no name twice, nothing without its parent, no circle."""
    found: dict[Key, AnyEntity] = {}

    def add(entity: AnyEntity) -> None:
        # A target must be described before: that makes no circle.
        if entity_key(entity) not in found and all(need in found for need in needs(entity)):
            found[entity_key(entity)] = entity

    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from([Queue, Topic, Subscription, Rule]))
        if kind is Queue:
            add(Queue(draw(NAMES), max_delivery_count=draw(st.integers(1, 3)), forward_to=draw(TARGETS)))
        elif kind is Topic:
            add(Topic(draw(NAMES), enable_batched_operations=draw(st.booleans())))
        elif kind is Subscription:
            add(Subscription(draw(NAMES), draw(SHORT), forward_dead_lettered_messages_to=draw(TARGETS)))
        else:
            add(Rule(draw(NAMES), draw(SHORT), draw(SHORT), SqlFilter(draw(st.sampled_from(["1=1", "x=1"])))))
    return draw(st.permutations(list(found.values())))


@given(layouts(), layouts())
def test_applied_plan_leaves_nothing_to_create(wanted: list[AnyEntity], before: list[AnyEntity]) -> None:
    namespace = Namespace([entity for entity in dependency_order(before) if isinstance(entity, AnyEntity)])
    was = dict(namespace.entities)
    # What has the name of another kind is told before there is a plan.
    assume(all(type(was.get(entity_key(each), each)) is type(each) for each in wanted))
    made = namespace.plan(wanted)
    namespace.apply(made)
    assert was.items() <= namespace.entities.items()
    again = namespace.plan(wanted)
    assert (again.creates, again.default_rules) == ((), ())
    assert len(existing(again)) == len(wanted)
    drifted = {entity_key(each.entity): each.differences for each in existing(made)}
    for each in existing(again):
        assert each.differences == drifted.get(entity_key(each.entity), ())


@given(layouts())
def test_plan_on_an_empty_namespace_creates_exactly_the_desired_entities(wanted: list[AnyEntity]) -> None:
    namespace = Namespace([])
    namespace.apply(namespace.plan(wanted))
    subscriptions = {entity_key(each) for each in wanted if isinstance(each, Subscription)}
    ruled = {need for each in wanted if isinstance(each, Rule) for need in needs(each)}
    own = {entity_key(Rule(*each, DEFAULT_RULE)) for each in subscriptions - ruled}
    assert namespace.entities.keys() == {entity_key(each) for each in wanted} | own
    assert all(not each.differences for each in existing(namespace.plan(wanted)))


def test_where_no_rules_are_given_any_are_as_well() -> None:
    there = [Topic("t"), Subscription("t", "s"), Rule("t", "s", "eu", SqlFilter("a=1"))]
    assert all(not each.differences for each in existing(Namespace(there).plan(there[:2])))


def test_targets_that_are_not_described_are_those_that_must_be_there() -> None:
    wanted = [Queue("a", forward_to="B"), Queue("b"), Subscription("t", "s", forward_dead_lettered_messages_to="Dead")]
    assert list(external_targets(wanted).values()) == ["Dead"]


def test_equivalent_values_are_no_difference() -> None:
    wanted = Queue("a", lock_duration="PT60S", forward_to="B", max_message_size_in_kilobytes=None)
    assert differences(wanted, Queue("A", forward_to="b", max_message_size_in_kilobytes=256)) == ()
    assert differences(Queue("a"), Queue("a", duplicate_detection_history_time_window="PT1H")) == ()
    assert (
        differences(Topic("t", enable_partitioning=True), Topic("t", enable_partitioning=True, support_ordering=False))
        == ()
    )


def test_each_property_that_differs_is_named_as_the_service_does() -> None:
    wanted = Rule("t", "s", "r", CorrelationFilter(label="x", properties=(("a", "1"),)))
    assert differences(wanted, Rule("t", "s", "r", action="SET a = 1")) == (
        Difference("Filter", "label = 'x' and a = '1'", "1=1", True),
        Difference("Action", "", "SET a = 1", True),
    )
