"""The vendor emulator's Config.json: its entities and defaults, and every fault with its path."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.emulator.clock import NEVER, ManualClock
from sbpair.emulator.declared_entities import ConfigFileInvalid, load_config, parse_config
from sbpair.emulator.entities.description import PREMIUM
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.server import RequestedNamespace
from sbpair.errors import MachineLacks, NameInvalid, UsageError
from sbpair.rules.filters import CorrelationRuleFilter, SqlRuleFilter, TrueRuleFilter

COMPLETE = """\ufeff{
  // As an editor wrote it.
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {"Name": "plain"},
          {
            "Name": "all.of/them",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT30M",
              "DuplicateDetectionHistoryTimeWindow": "PT5S", /* less than
                                                                the service */
              "ForwardDeadLetteredMessagesTo": "plain",
              "ForwardTo": "",
              "LockDuration": "PT5S",
              "MaxDeliveryCount": 10,
              "RequiresDuplicateDetection": true,
              "RequiresSession": true,
            }
          }
        ],
        "Topics": [
          {
            "Name": "news",
            "Properties": {"RequiresDuplicateDetection": false},
            "Subscriptions": [
              {"Name": "everything", "Properties": {"ForwardTo": "Plain"}},
              {
                "Name": "some",
                "Rules": [
                  {"Name": "json", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {
                    "ContentType": "application/json", "Properties": {"price": 5, "https://x": "a,] // b", "new": true}
                  }}},
                  {"Name": "sql", "Properties": {
                    "FilterType": "Sql",
                    "SqlFilter": {"SqlExpression": "sys.MessageId = '1' AND color = 'red'"},
                    "Action": {"SqlExpression": "SET sys.To = 'Entity'"}
                  }}
                ]
              },
            ]
          }
        ],
        "HybridConnections": [
          {"Name": "one"}, {"Name": "two/x", "Properties": {"RequiresClientAuthorization": false}}
        ]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


def created(text: str, **options: Any) -> Namespace:
    """Return a namespace with the entities of a file."""
    config = parse_config(text, "Config.json")
    [requested] = config.requested([], 0)
    namespace = Namespace(requested.name, ManualClock(), **options)
    config.create_entities(namespace)
    return namespace


def document(**namespace: object) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", **namespace}]}})


def queue(**properties: object) -> str:
    return document(Queues=[{"Name": "orders", "Properties": properties}])


def subscription(**members: object) -> str:
    return document(Topics=[{"Name": "news", "Subscriptions": [{"Name": "s", **members}]}])


def rule(*names: str, **properties: object) -> str:
    return subscription(Rules=[{"Name": name, "Properties": properties} for name in names or ("r",)])


def hybrid_connections(*declared: object, **properties: object) -> str:
    return document(HybridConnections=[*declared, *([{"Name": "a", "Properties": properties}] if properties else [])])


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigFileInvalid) as caught:
        parse_config(text, "Config.json").requested([], 0)
    return [fault.removeprefix("Config.json: ") for fault in caught.value.faults]


@pytest.fixture
def complete(tmp_path: Path) -> Namespace:
    path = tmp_path / "Config.json"
    path.write_text(COMPLETE, encoding="utf-8")
    config = load_config(path)
    namespace = Namespace("sbemulatorns", ManualClock())
    assert config.requested([], 5672) == [RequestedNamespace("sbemulatorns", 5672)]
    config.create_entities(namespace)
    return namespace


def test_every_property_of_a_queue_is_taken_over(complete: Namespace) -> None:
    found = complete.queue("all.of/them").description
    assert (found.dead_lettering_on_message_expiration, found.requires_session) == (True, True)
    assert (found.requires_duplicate_detection, found.duplicate_detection_window_ms) == (True, 5_000)
    assert (found.ttl_ms, found.lock_ms, found.max_delivery_count) == (1_800_000, 5_000, 10)
    assert (found.forward_to, found.forward_dead_lettered_messages_to) == (None, "sb://sbemulatorns/plain")


def test_properties_left_out_are_those_of_the_vendors_schema(complete: Namespace) -> None:
    found = complete.queue("plain").description
    assert (found.ttl_ms, found.lock_ms, found.max_delivery_count) == (3_600_000, 60_000, 3)
    assert (found.requires_duplicate_detection, found.duplicate_detection_window_ms) == (False, 20_000)
    assert (found.requires_session, found.dead_lettering_on_message_expiration) == (False, False)
    topic = complete.topic("news")
    assert (topic.description.ttl_ms, topic.description.duplicate_detection_window_ms) == (3_600_000, 20_000)
    subscription = topic.subscription("some").description
    assert (subscription.ttl_ms, subscription.lock_ms, subscription.max_delivery_count) == (3_600_000, 60_000, 3)


def test_a_subscription_has_its_rules_or_the_true_filter(complete: Namespace) -> None:
    topic = complete.topic("news")
    [default] = topic.subscription("everything").rules
    assert (default.name, default.filter) == ("$Default", TrueRuleFilter())
    by_name = {rule.name: rule for rule in topic.subscription("some").rules}
    assert by_name.keys() == {"json", "sql"}
    correlation = by_name["json"].filter
    assert isinstance(correlation, CorrelationRuleFilter)
    assert correlation.content_type == "application/json"
    values = {name: typed.value for name, typed in correlation.properties}
    assert values == {"price": 5, "https://x": "a,] // b", "new": True}
    assert isinstance(by_name["sql"].filter, SqlRuleFilter)
    assert by_name["sql"].action is not None


def test_hybrid_connections_may_be_open_to_all_senders(complete: Namespace) -> None:
    found = complete.hybrid_connections.all()
    assert {each.path: each.description.requires_client_authorization for each in found} == {
        "one": True,
        "two/x": False,
    }


def test_limits_are_wider_than_the_vendors() -> None:
    wide = {"MaxDeliveryCount": 2_147_483_647, "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S"}
    more = {
        "MaxSizeInMegabytes": 5120,
        "EnablePartitioning": True,
        "AutoDeleteOnIdle": "PT5M",
        "Status": "SendDisabled",
    }
    found = created(queue(**wide, **more)).queue("orders").description
    assert (found.max_delivery_count, found.ttl_ms, found.partition_count) == (2_147_483_647, NEVER, 16)
    assert (found.max_size_in_megabytes, found.status) == (5120, "SendDisabled")
    many = created(document(Queues=[{"Name": f"q{number}"} for number in range(500)]))
    assert len(many.queues()) == 500


def test_several_namespaces_have_ports_of_their_own() -> None:
    named = [{"Name": "contoso", "Queues": [{"Name": "a"}]}, {"Name": "contoso-dr", "Queues": [{"Name": "b"}]}]
    config = parse_config(json.dumps({"UserConfig": {"Namespaces": named}}), "Config.json")
    assert config.requested([], 5672) == [
        ("contoso", 5672, "Standard", 1, None),
        ("contoso-dr", 5673, "Standard", 1, None),
    ]
    given = RequestedNamespace("Contoso-DR", 0, "premium", 2)
    second = config.requested([given], 5672)[1]
    assert second == ("contoso-dr", 0, "premium", 2, None)
    namespace = Namespace("contoso-dr", ManualClock(), tier=PREMIUM, partitions=2)
    config.create_entities(namespace)
    assert [each.path for each in namespace.queues()] == ["b"]


def test_a_namespace_given_that_the_file_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="namespace 'contoso' is not in Config") as caught:
        parse_config(document(), "Config.json").requested([RequestedNamespace("contoso", 0)], 5672)
    assert caught.value.hint == "it has sbemulatorns"


EMPTY = ["[]", "null", "{}", '{"UserConfig": {"Namespaces": []}}', '{"UserConfig": {"Namespaces": [{}]}}']


@pytest.mark.parametrize("given", [(), (RequestedNamespace("contoso", 0),)], ids=["as it is", "with a namespace"])
@pytest.mark.parametrize("text", EMPTY)
def test_a_file_without_namespaces_is_refused_with_what_to_add(text: str, given: tuple[RequestedNamespace]) -> None:
    with pytest.raises(ConfigFileInvalid) as caught:
        parse_config(text, "Config.json").requested(given, 5672)
    assert len(caught.value.faults) == 1
    assert caught.value.hint is not None
    added = parse_config(caught.value.hint.removeprefix("add a namespace to the file: "), "Config.json")
    assert added.requested([], 5672) == [RequestedNamespace("sbemulatorns", 5672)]


def test_the_limits_are_those_of_the_tier_given() -> None:
    config = parse_config(queue(RequiresSession=True), "Config.json")
    with pytest.raises(ConfigFileInvalid, match=r"'RequiresSession' cannot be set .* 'Basic' Tier"):
        config.requested([RequestedNamespace("sbemulatorns", 0, "basic")], 5672)
    with pytest.raises(NameInvalid):
        config.requested([RequestedNamespace("-", 0)], 5672)


def test_entities_that_exist_stay_as_they_are() -> None:
    config = parse_config(COMPLETE.removeprefix("\ufeff"), "Config.json")
    [requested] = config.requested([], 0)
    namespace = Namespace(requested.name, ManualClock())
    existing = namespace.create_queue("PLAIN")
    news = namespace.create_topic("news").create_subscription("some")
    config.create_entities(namespace)
    assert namespace.queue("plain") is existing
    assert [each.name for each in news.rules] == ["$Default"]
    assert namespace.topic("news").find_subscription("everything")


@pytest.mark.parametrize(
    ("declared", "create", "fault"),
    [
        (
            {"Topics": [{"Name": "news", "Subscriptions": [{"Name": "s"}]}]},
            lambda namespace: namespace.create_queue("News"),
            r"Topics\[0\].Name: The specified messaging entity 'news' already exists",
        ),
        (
            {"Queues": [{"Name": "NEWS/subscriptions/s"}]},
            lambda namespace: namespace.create_topic("news").create_subscription("S"),
            r"Queues\[0\].Name: .*'NEWS/subscriptions/s' already exists",
        ),
    ],
)
def test_an_entity_of_another_kind_in_its_place_is_a_fault(declared, create, fault) -> None:
    config = parse_config(document(**declared), "Config.json")
    [requested] = config.requested([], 0)
    namespace = Namespace(requested.name, ManualClock())
    create(namespace)
    with pytest.raises(ConfigFileInvalid, match=fault):
        config.create_entities(namespace)


Q = "UserConfig.Namespaces[0].Queues[0]"
T = "UserConfig.Namespaces[0].Topics[0]"
R = f"{T}.Subscriptions[0].Rules[0]"
H = "UserConfig.Namespaces[0].HybridConnections"
VALUE = "The value of {} is not allowed: it must be {}."
WRONG: list[tuple[str, list[str]]] = [
    ("[]", ["expected an object, got a list"]),
    ("{}", ["UserConfig is missing"]),
    ('{"UserConfig": 5}', ["UserConfig: expected an object, got a whole number"]),
    ('{"UserConfig": {}}', ["UserConfig: Namespaces is missing"]),
    ('{"UserConfig": {"Namespaces": []}}', ["UserConfig.Namespaces: a namespace is missing"]),
    ('{"UserConfig": {"Namespaces": {}}}', ["UserConfig.Namespaces: expected a list, got an object"]),
    ('{"UserConfig": {"Namespaces": [{}]}}', ["UserConfig.Namespaces[0]: Name is missing"]),
    (
        '{"UserConfig": {"Namespaces": [{"Name": "a/b"}]}}',
        [
            (
                "UserConfig.Namespaces[0].Name: 'a/b' is not a valid namespace name; "
                "use 2 to 50 letters, digits and hyphens, a letter first"
            )
        ],
    ),
    (
        '{"UserConfig": {"Namespaces": [{"Name": "contoso"}, {"Name": "Contoso"}]}}',
        ["UserConfig.Namespaces[1].Name: namespace 'Contoso' is named twice"],
    ),
    (
        '{"UserConfig": {"Namespaces": [{"Name": "contoso"}], "Logging": {"Type": "Syslog"}}}',
        ["UserConfig.Logging.Type: unknown type 'Syslog'; expected one of File Console File,Console Console,File"],
    ),
    (
        '{"userConfig": {"Namespaces": []}}',
        ["userConfig: unknown property; expected UserConfig", "UserConfig is missing"],
    ),
    (
        '{"UserConfig": {"Namespaces": [{"Name": "contoso", "Name": "other"}]}}',
        ["UserConfig.Namespaces[0].Name: given more than once"],
    ),
    (document(Queue=[]), ["UserConfig.Namespaces[0].Queue: unknown property; expected Queues"]),
    (document(Topics=None), ["UserConfig.Namespaces[0].Topics: expected a list, got null"]),
    (document(Queues=["orders"]), [f"{Q}: expected an object, got text"]),
    (
        document(Queues=[{"Name": "a", "Subscriptions": []}]),
        [f"{Q}.Subscriptions: unknown property; expected one of Name, Properties"],
    ),
    (
        document(Queues=[{"Name": "a"}, {"Name": "A"}], Topics=[{"Name": "a"}]),
        [
            "UserConfig.Namespaces[0].Queues[1].Name: the name 'A' is used twice",
            f"{T}.Name: the name 'a' is used twice",
        ],
    ),
    (
        document(Topics=[{"Name": "a b", "Properties": {"x": 1}, "Subscriptions": [{"Name": "c d"}]}]),
        [
            f"{T}.Properties.x: unknown property; expected one of",
            f"{T}.Name: 'a b' contains character",
            f"{T}.Subscriptions[0].Name: 'c d' contains character",
        ],
    ),
    (queue(LockDuraton="PT1M"), [f"{Q}.Properties.LockDuraton: unknown property; expected LockDuration"]),
    (queue(LockDuration=60), [f"{Q}.Properties.LockDuration: expected text, got a whole number"]),
    (queue(MaxDeliveryCount="3"), [f"{Q}.Properties.MaxDeliveryCount: expected a whole number, got text"]),
    (queue(MaxDeliveryCount=2.5), [f"{Q}.Properties.MaxDeliveryCount: expected a whole number, got a number"]),
    (queue(MaxDeliveryCount=True), [f"{Q}.Properties.MaxDeliveryCount: expected a whole number, got true"]),
    (queue(RequiresSession="true"), [f"{Q}.Properties.RequiresSession: expected true or false, got text"]),
    (
        queue(LockDuration="1m", MaxDeliveryCount=0),
        [
            f"{Q}.Properties.LockDuration: The value '1m' of LockDuration cannot be read as a duration such as PT1M.",
            f"{Q}.Properties.MaxDeliveryCount: {VALUE.format('MaxDeliveryCount', 'from 1 to 2147483647')}",
        ],
    ),
    (
        queue(DuplicateDetectionHistoryTimeWindow="PT4S"),
        [
            (
                f"{Q}.Properties.DuplicateDetectionHistoryTimeWindow: "
                f"{VALUE.format('DuplicateDetectionHistoryTimeWindow', 'from 20 seconds to 7 days')}"
            )
        ],
    ),
    (queue(ForwardTo="elsewhere"), [f"{Q}.Properties.ForwardTo: there is no queue or topic 'elsewhere'"]),
    (
        document(Topics=[{"Name": "news", "Subscriptions": [{"Name": "s"}, {"Name": "S"}]}]),
        [f"{T}.Subscriptions[1].Name: the name 'S' is used twice"],
    ),
    (
        document(
            Queues=[{"Name": "News/SUBSCRIPTIONS/s"}], Topics=[{"Name": "news", "Subscriptions": [{"Name": "S"}]}]
        ),
        [f"{T}.Subscriptions[0].Name: The messaging entity 'news/Subscriptions/S' already exists."],
    ),
    (
        document(Topics=[{"Name": "news", "Subscriptions": [{"Name": "s"}]}, {"Name": "News/SUBSCRIPTIONS/s"}]),
        ["UserConfig.Namespaces[0].Topics[1].Name: The specified messaging entity 'News/SUBSCRIPTIONS/s' already exi"],
    ),
    (
        document(Topics=[{"Name": "news", "Subscriptions": [{"Name": "s" * 51}]}]),
        [f"{T}.Subscriptions[0].Name: The name of a subscription has 1 to 50 characters, not 51."],
    ),
    (
        subscription(Properties={"RequiresSession": True, "ForwardTo": "news"}),
        [f"{T}.Subscriptions[0].Properties: {VALUE.format('ForwardTo', 'empty where sessions are required')}"],
    ),
    (subscription(Rules={}), [f"{T}.Subscriptions[0].Rules: expected a list, got an object"]),
    (hybrid_connections({}), [f"{H}[0]: Name is missing"]),
    (hybrid_connections({"Name": "a b"}), [f"{H}[0].Name: 'a b' contains"]),
    (hybrid_connections({"Name": "a"}, {"Name": "A"}), [f"{H}[1].Name: the name 'A' is used twice"]),
    (hybrid_connections(LockDuration="PT1M"), [f"{H}[0].Properties.LockDuration: unknown property; expected "]),
    (
        hybrid_connections(RequiresClientAuthorization="no"),
        [f"{H}[0].Properties.RequiresClientAuthorization: expected true or false, got text"],
    ),
    (rule(), [f"{R}.Properties: FilterType is missing"]),
    (
        rule(FilterType="True"),
        [f"{R}.Properties.FilterType: unknown filter type 'True'; expected Correlation or Sql"],
    ),
    (rule(FilterType="Sql"), [f"{R}.Properties: SqlFilter is missing"]),
    (rule(FilterType="Sql", SqlFilter={}), [f"{R}.Properties.SqlFilter: SqlExpression is missing"]),
    (
        rule(FilterType="Sql", SqlFilter={"SqlExpression": "a = 1"}, CorrelationFilter={"Label": "x"}),
        [f"{R}.Properties.CorrelationFilter: does not go with the FilterType Sql"],
    ),
    (
        rule(FilterType="Sql", SqlFilter={"SqlExpression": "a = = 1"}, Action={"SqlExpression": "'open"}),
        [
            f"{R}.Properties.{part}.SqlExpression: There was an error parsing the SQL expression."
            for part in ("Action", "SqlFilter")
        ],
    ),
    (
        rule("a", "A", "b/c", FilterType="Correlation", CorrelationFilter={"Label": "x"}),
        [f"{T}.Subscriptions[0].Rules[{number}].Name: " for number in (2, 1)],
    ),
    (
        rule(FilterType="Correlation", CorrelationFilter={"Label": 5}),
        [
            f"{R}.Properties.CorrelationFilter.Label: expected text, got a whole number",
            f"{R}.Properties.CorrelationFilter: A correlation filter needs at least one property to compare with.",
        ],
    ),
    (
        rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": None, "b": [], "c": 10**30}}),
        [
            (
                f"{R}.Properties.CorrelationFilter.Properties.a: expected text or a whole number or a number "
                "or true or false, got null"
            ),
            (
                f"{R}.Properties.CorrelationFilter.Properties.b: expected text or a whole number or a number "
                "or true or false, got a list"
            ),
            f"{R}.Properties.CorrelationFilter.Properties.c: The value '{10**30}' is not of the type long.",
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_a_fault_has_its_path_and_the_expected_value(text: str, expected: list[str]) -> None:
    found = faults(text)
    assert [fault[: len(start)] for fault, start in zip(found, expected, strict=True)] == expected


def test_all_faults_of_a_file_are_reported_together() -> None:
    text = json.dumps(
        {
            "UserConfig": {
                "Namespaces": [
                    {"Name": "contoso", "Queues": [{"Name": "a", "Properties": {"MaxDeliveryCount": -1}}, {}]},
                    {"Name": "other", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "?"}]}]},
                ],
                "Logging": {"Level": "Debug"},
            }
        }
    )
    assert [fault.partition(": ")[0] for fault in faults(text)] == [
        "UserConfig.Logging.Level",
        "UserConfig.Namespaces[0].Queues[0].Properties.MaxDeliveryCount",
        "UserConfig.Namespaces[0].Queues[1]",
        "UserConfig.Namespaces[1].Topics[0].Subscriptions[0].Name",
    ]


NAMES = [
    "Type", "Name", "Queues", "Topics", "Subscriptions", "Properties", "Rules", "FilterType", "SqlFilter", "Action",
    "SqlExpression", "CorrelationFilter", "Label", "LockDuration", "MaxDeliveryCount", "ForwardTo", "UserMetadata", "x",
]  # fmt: skip
SCALARS = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, "", "a", "A/b", "PT1M", "P9D", "Sql", "Correlation", "a = 1", "\0"]
)
LISTED = {"Queues", "Topics", "Subscriptions", "Rules"}


def anything(depth: int) -> st.SearchStrategy[Any]:
    """Return documents with the names of the format, mostly at their places."""
    if not depth:
        return SCALARS
    inner = st.deferred(lambda: anything(depth - 1))
    placed = {name: st.lists(inner, max_size=3) if name in LISTED else inner for name in NAMES}
    members = st.lists(st.sampled_from(NAMES), max_size=5, unique=True)
    return SCALARS | members.flatmap(lambda names: st.fixed_dictionaries({name: placed[name] for name in names}))


@given(queues=st.lists(anything(3), max_size=3), topics=st.lists(anything(4), max_size=3), logging=anything(1))
def test_any_document_is_taken_over_or_refused_with_paths(queues: list, topics: list, logging: object) -> None:
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
    config = parse_config(json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": logging}}), "Config.json")
    refused: list[str] = []
    try:
        config.requested([], 0)
    except ConfigFileInvalid as error:
        refused = error.faults
    if refused:
        assert all(fault.startswith("Config.json: UserConfig.") for fault in refused)
        return
    created = Namespace("sbemulatorns", ManualClock())
    config.create_entities(created)
    assert {each.path.lower() for each in created.queues()} == {queue["Name"].strip("/").lower() for queue in queues}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Config.json:1:1: not JSON: Expecting value"),
        ("{\n  // comment\n  'a': 1\n}", "Config.json:3:3: not JSON"),
        ('{\n "a": 1,,\n}', "Config.json:2:9: not JSON"),
        ("{,}", "Config.json:1:2: not JSON"),
        ("[,]", "Config.json:1:2: not JSON"),
        ('{"a": NaN}', "Config.json: not JSON: NaN is not a number of JSON"),
        ('{"a": 1} // end\n}', "Config.json:2:1: not JSON: Extra data"),
        ('{"a": "// open', "Config.json:1:7: not JSON"),
        ("{ /* open ", "Config.json:1:3: not JSON"),
        ("[" * 100_000, "Config.json is nested too deeply"),
        (f'{{"a": {"9" * 5000}}}', "Config.json: not JSON: Exceeds the limit"),
    ],
)
def test_text_that_is_not_json_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text, "Config.json")
    assert caught.value.message.startswith(message)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_bytes(b'{"UserConfig": "\xff"}')
    with pytest.raises(UsageError) as caught:
        load_config(path)
    assert caught.value.message == f"{path} is not UTF-8"


def test_a_file_that_the_system_cannot_read_is_a_lack_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match="cannot be read: File name too long"):
        load_config(tmp_path / ("n" * 300))


def test_the_schema_of_an_editor_is_ignored() -> None:
    text = document().replace("{", '{"$schema": "https://example.org/Config-schema.json", ', 1)
    assert created(text).name == "sbemulatorns"
