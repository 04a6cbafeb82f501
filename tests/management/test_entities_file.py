"""Entities files, valid and invalid, and their errors."""

from pathlib import Path

import pytest

from sbpair.errors import UsageError
from sbpair.management.entities_file import parse_entities
from sbpair.model.entities import CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.timespan import TIMESPAN_MAX

ROOT = Path(__file__).parents[2]
WHOLE = """\
[queues]
failures = {}

[queues."billing/invoices"]
lock_duration = "30s"
forward_dead_lettered_messages_to = "failures"
default_message_time_to_live = "P14D"
duplicate_detection_history_time_window = "90m"
requires_duplicate_detection = true
max_message_size_in_kilobytes = 2048

[topics.events]
max_size_in_megabytes = 2048

[topics.events.subscriptions]
all = { max_delivery_count = 20 }

[topics.events.subscriptions.audit.rules]
europe = { sql = "region = 'eu'", action = "SET seen = 1" }
urgent.correlation = { label = "urgent", properties = { b = "2", a = "1" } }
'$Default' = {}
"""


def test_every_kind_is_parsed_with_defaults_for_omitted_properties() -> None:
    layout = parse_entities(WHOLE, "entities.toml")
    urgent = CorrelationFilter(label="urgent", properties=(("a", "1"), ("b", "2")))
    assert layout.entities == (
        Queue("failures"),
        Queue(
            "billing/invoices",
            lock_duration="PT30S",
            default_message_time_to_live="P14D",
            duplicate_detection_history_time_window="PT1H30M",
            requires_duplicate_detection=True,
            forward_dead_lettered_messages_to="failures",
            max_message_size_in_kilobytes=2048,
        ),
        Topic("events", max_size_in_megabytes=2048),
        Subscription("events", "all", max_delivery_count=20),
        Subscription("events", "audit"),
        Rule("events", "audit", "europe", SqlFilter("region = 'eu'"), "SET seen = 1"),
        Rule("events", "audit", "urgent", urgent),
        Rule("events", "audit", "$Default"),
    )
    assert Queue("failures").default_message_time_to_live == TIMESPAN_MAX


def test_an_empty_file_describes_nothing() -> None:
    assert parse_entities("", "entities.toml").entities == ()


def test_position_of_each_property_is_kept() -> None:
    layout = parse_entities(WHOLE, "entities.toml")
    invoices, europe = layout.entities[1], layout.entities[5]
    assert layout.where(invoices, "lock_duration") == "entities.toml:5:1: "
    assert layout.where(invoices, "max_size_in_megabytes") == "entities.toml:4:9: "
    assert layout.where(europe, "filter") == "entities.toml:19:12: "
    assert layout.where(Queue("unheard of")) == ""


COMPARES = "[topics.t.subscriptions.s.rules.r.correlation]\nproperties.a ="
BAD = [
    ("[queue.a]", "1:2: unknown key 'queue' of the file", "queues"),
    ("queues = 1", "1:1: queues must be a table", ""),
    ("[queues]\na = 1", "2:1: a must be a table", ""),
    ("[[queues]]", "1:3: queues must be a table", ""),
    ("[queues.a]\nmax_delivery_cout = 3", "2:1: unknown key 'max_delivery_cout' of a queue", "max_delivery_count"),
    ("[queues.a]\n'support_ordering' = true", "2:1: unknown key 'support_ordering' of a queue", ""),
    ("queues.a = {\"lock_duration\"='1s', x=1}", "1:35: unknown key 'x' of a queue", "expected one of lock_duration"),
    ("[queues.a]\npath = 'b'", "2:1: unknown key 'path' of a queue", ""),
    ("[queues.a]\nsubscriptions = {}", "2:1: unknown key 'subscriptions' of a queue", ""),
    ("[topics.t.subscriptions.s]\ntopic = 'b'", "2:1: unknown key 'topic' of a subscription", ""),
    ("[topics.t.subscriptions.s.rules.r]\nfilter = 'b'", "2:1: unknown key 'filter' of a rule", ""),
    ("topics.t.subscriptions.s.rules.r.correlation.lable = 'b'", "1:46: unknown key 'lable'", "label"),
    ("[queues.a]\nlock_duration = 30", "2:1: lock_duration must be text in quotes", ""),
    ("[queues.a]\nmax_size_in_megabytes = '1024'", "2:1: max_size_in_megabytes must be a whole number", ""),
    ("[queues.a]\nmax_size_in_megabytes = 1024.0", "2:1: max_size_in_megabytes must be a whole number", ""),
    ("[queues.a]\nmax_delivery_count = true", "2:1: max_delivery_count must be a whole number", ""),
    ("[queues.a]\nrequires_session = 1", "2:1: requires_session must be true or false", ""),
    ("[queues.a]\nmax_message_size_in_kilobytes = ''", "2:1: max_message_size_in_kilobytes must be a whole", ""),
    ("[queues.a]\nlock_duration = 2026-01-01", "2:1: lock_duration must be text", ""),
    ("[queues.a]\nlock_duration = 'soon'", "2:1: lock_duration: expected a duration such as 90s, got 'soon'", "PT1M"),
    ("[queues.a]\nlock_duration = '5m1s'", "2:1: lock_duration of queue a: expected more than nothing", ""),
    ("[queues.a]\nlock_duration = '0s'", "2:1: lock_duration of queue a", ""),
    ("[queues.a]\nauto_delete_on_idle = '4m59s'", "2:1: auto_delete_on_idle of queue a", ""),
    ("[queues.a]\nduplicate_detection_history_time_window = '19s'", "2:1: duplicate_detection", ""),
    ("[queues.a]\nduplicate_detection_history_time_window = 'P7DT1S'", "2:1: duplicate_detection", ""),
    ("[queues.a]\ndefault_message_time_to_live = '900ms'", "2:1: default_message_time_to_live of", ""),
    ("[queues.a]\nmax_delivery_count = 0", "2:1: max_delivery_count of queue a", ""),
    ("[queues.a]\nmax_delivery_count = 2147483648", "2:1: max_delivery_count of queue a", ""),
    ("[queues.a]\nmax_size_in_megabytes = 6144", "2:1: max_size_in_megabytes of queue a: expected 1024, 2048", ""),
    ("[queues.a]\nstatus = 'active'", "2:1: status of queue a: expected Active, Disabled", ""),
    (f"[queues.a]\nuser_metadata = '{'x' * 1025}'", "2:1: user_metadata of queue a: expected at most 1024", ""),
    ("[queues.a]\nforward_to = 'A'", "2:1: forward_to of queue a: it forwards to itself", ""),
    ("[queues.a]\nforward_to = 'b b'", "2:1: forward_to of queue a", ""),
    (
        "[topics.t.subscriptions.s]\nrequires_session = true\nforward_to = 'b'",
        "3:1: forward_to of subscription t/Subscriptions/s: a subscription that requires sessions cannot forward",
        "",
    ),
    ("[queues.'a b']", "1:9: queue a b: 'a b' is not a valid path of a queue", ""),
    ("[queues.'a~b']", "1:9: queue a~b", ""),
    ("[queues.'/a']", "1:9: queue /a", ""),
    ("[queues.'a//b']", "1:9: queue a//b", ""),
    ("[queues.'']", "1:9: queue", ""),
    (f"[queues.{'a' * 261}]", "1:9: queue", ""),
    (f"[topics.t.subscriptions.{'s' * 51}]", "1:25: subscription", ""),
    ("[topics.t.subscriptions.'a/b']", "1:25: subscription t/Subscriptions/a/b: the name may have", ""),
    ("[topics.t.subscriptions.s.rules.'a*']", "1:33: rule", ""),
    ("[topics.t.subscriptions.s]\nforward_to = 't'", "2:1: forward_to of subscription", ""),
    ("[topics.t.subscriptions.s.rules.'$Default']\nsql = 'a = 1'", "2:1: filter of rule", ""),
    ("[topics.t.subscriptions.s.rules.r]\nsql = ''", "2:1: filter of rule", ""),
    (f"[topics.t.subscriptions.s.rules.r]\nsql = '{'x' * 1025}'", "2:1: filter of rule", ""),
    (f"[topics.t.subscriptions.s.rules.r]\naction = '{'x' * 1025}'", "2:1: action of rule", ""),
    (
        "[topics.t.subscriptions.s.rules.r]\naction = 'SET x = 1'\nsql = 'a == 1'",
        "3:1: filter of rule t/Subscriptions/s/Rules/r: expected a value or a property, got '=', at character 4: write",
        "",
    ),
    (
        "[topics.t.subscriptions.s.rules.r]\naction = 'SET sys.SequenceNumber = 1'",
        "2:1: action of rule t/Subscriptions/s/Rules/r: The system property 'sequencenumber' cannot be changed",
        "",
    ),
    ("[topics.t.subscriptions.s.rules.r]\ncorrelation = {}", "2:1: filter of rule", ""),
    ("[topics.t.subscriptions.s.rules.r]\nsql = 'a=1'\ncorrelation.to = 'x'", "3:1: a rule has sql or", ""),
    (f"{COMPARES} []", "2:12: a must be text", ""),
    (f"{COMPARES} nan", "2:12: a must be text", ""),
    (f"{COMPARES} -2147483649", "2:12: a must be text", "-2147483648 to"),
    (f"{COMPARES} 9223372036854775808", "2:12: a must be text", "whole numbers"),
    (f"{COMPARES} 2026-01-01", "2:12: a must be text", ""),
    (f"{COMPARES} 2026-01-01T00:00:00", "2:12: a must be text", "correct a"),
    (f"{COMPARES} 2026-01-01T00:00:00.5Z", "2:12: a must be text", "whole seconds"),
    ("[queues.a]\n[queues.A]", "2:9: queue A uses a name that the file defines above", ""),
    ("[topics.a]\n[queues.A]", "1:9: topic a uses a name that the file defines above", ""),
    ("[queues]\na.forward_to = 'b'\nb.forward_dead_lettered_messages_to = 'A'", "to each other in a circle: ", ""),
    ("[queues.a]\n[queues.a]", "2:10: not TOML", "toml.io"),
    ("[queues.a\n", "1:10: not TOML", "toml.io"),
    ("a = " + "[" * 5000, "is nested too deeply", ""),
    ("[queues.a]\nuser_metadata = 'Endpoint=sb://x/;SharedAccessKey=c2VjcmV0'", "holds a connection string", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told", "hint"), BAD)
def test_each_fault_is_reported_with_line_and_column(text: str, told: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_entities(text, "e.toml")
    assert told in caught.value.message.removeprefix("e.toml:").strip()
    assert hint in caught.value.hint
    assert caught.value.hint
    assert "c2VjcmV0" not in caught.value.message + caught.value.hint


FAULTS = """\
[queues.a]
x = 1
lock_duration = 'soon'
status = 3
[topics.t]
auto_delete_on_idle = "1s"
[topics.t.subscriptions.s.rules.a]
sql = "a ="
[topics.t.subscriptions.s.rules.b.correlation]
properties.n = nan
"""


def test_the_error_of_the_first_fault_has_the_others_in_order() -> None:
    with pytest.raises(UsageError, match=r"e.toml:2:1: unknown key 'x' of a queue") as caught:
        parse_entities(FAULTS, "e.toml")
    lines = [each.message.partition(" ")[0] for each in caught.value.others]
    assert lines == [f"e.toml:{each}:" for each in ("3:1", "4:1", "6:1", "8:1", "10:12")]
