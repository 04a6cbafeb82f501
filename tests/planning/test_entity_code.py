"""Exported code: what it deploys is what provisioning creates, and every text survives both languages."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator
from yarl import URL

from sbpair.emulator.access.bearer import ARM_AUDIENCES
from sbpair.errors import NameInvalid, UsageError
from sbpair.management.entities_file import NO_ENTITIES, EntitiesDocument, parse_entities
from sbpair.management.provisioning import provision
from sbpair.model.entities import AnyEntity, CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.model.pair import ResourceGroup
from sbpair.model.report import Outcome
from sbpair.planning.bicep import bicep
from sbpair.planning.entity_code import TYPES, NamespaceCode, Side, namespace_code
from sbpair.planning.terraform import terraform
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.pairs import endpoint_on, pair_on, unconnected_pair, use_identity
from tests.planning.read_code import TERRAFORM, ReadResource, read_bicep, read_terraform, run_terraform

GROUP = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
RENDERERS = {"bicep": bicep, "terraform": terraform}
SCHEMA = json.loads((Path(__file__).parent / "resource_schema.json").read_text())
DEFINITIONS = dict(
    zip(
        TYPES.values(),
        ("SBQueueProperties", "SBTopicProperties", "SBSubscriptionProperties", "Ruleproperties"),
        strict=True,
    )
)
READ_ONLY = {"createdAt", "updatedAt", "accessedAt", "countDetails", "messageCount", "sizeInBytes", "subscriptionCount"}
FILE = """
[queues."billing/invoices"]
lock_duration = "30s"
requires_duplicate_detection = true
duplicate_detection_history_time_window = "1h"
forward_dead_lettered_messages_to = "failures"
user_metadata = "it's ${ours} %{if} \\"x\\" \\\\ \\n"
[queues.failures]
status = "SendDisabled"
enable_partitioning = true
max_size_in_megabytes = 2048
[queues.sessions]
requires_session = true
default_message_time_to_live = "14d"
forward_to = "elsewhere"
[topics."events/all"]
support_ordering = false
[topics."events/all".subscriptions.audit]
max_delivery_count = 3
[topics."events/all".subscriptions.audit.rules.big]
sql = "size > 10 AND kind = '${x}'"
action = "SET seen = 1"
[topics."events/all".subscriptions.audit.rules.ours.correlation]
label = "x"
properties = { "for" = "a", "x y" = "b", tenant = "c" }
[topics."events/all".subscriptions.whole]
[topics."events/all".subscriptions.kept.rules."$Default"]
[topics."events/all".subscriptions.kept.rules.more]
sql = "1=0"
"""
ENTITIES = parse_entities(FILE, "entities.toml")

needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="needs Terraform")
BOTH = pytest.mark.parametrize("language", ["bicep", pytest.param("terraform", marks=needs_terraform)])


def code_of(
    entities: Iterable[AnyEntity] = (), side: Side = "secondary", *, partitioned: bool = False
) -> NamespaceCode:
    document = EntitiesDocument(tuple(entities))
    return namespace_code(unconnected_pair(4), side, document, partitioned=partitioned)


def read(language: str, code: NamespaceCode) -> list[ReadResource]:
    if language == "bicep":
        return read_bicep(bicep(code))
    with tempfile.TemporaryDirectory() as folder:
        return read_terraform(terraform(code), Path(folder))


class Manager:
    """Azure Resource Manager of an emulator, as a deployment uses it."""

    def __init__(self, emulator: Emulator, session: ClientSession) -> None:
        assert emulator.identity is not None
        token, _ = emulator.identity.issuer.issue(ARM_AUDIENCES[1], emulator.clock.now_ms())
        self._authority = emulator.namespaces["contoso"].authority
        self._session, self._headers = session, {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        root = (
            f"/subscriptions/{GROUP.subscription}/resourceGroups/{GROUP.name}/providers/Microsoft.ServiceBus/namespaces"
        )
        url = URL(f"http://{self._authority}{root}/{path}?api-version=2026-01-01", encoded=True)
        async with self._session.request(method, url, json=body, headers=self._headers) as answer:
            text = await answer.text()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text}"
            return json.loads(text) if text else None

    async def deploy(self, namespace: str, resources: list[ReadResource]) -> None:
        """Create each resource after its parent and its needs, as both tools do."""
        done: dict[str, str] = {"": namespace}
        waiting = list(resources)
        while waiting:
            ready = [each for each in waiting if {each.parent, *each.needs} <= done.keys()]
            assert ready
            for each in ready:
                if each.properties.get("method") == "DELETE":
                    done[each.symbol] = f"{done[each.parent]}/rules/$Default"
                    await self.ask("DELETE", done[each.symbol])
                    continue
                kind = each.type.partition("@")[0].rpartition("/")[2]
                done[each.symbol] = f"{done[each.parent]}/{kind}/{each.name}"
                await self.ask("PUT", done[each.symbol], {"properties": each.properties})
            waiting = [each for each in waiting if each.symbol not in done]

    async def content(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the properties of every entity below a path, without what the service adds."""
        found: dict[str, dict[str, Any]] = {}
        depth = path.count("/")
        below = {0: ("queues", "topics"), 2: ("subscriptions",), 4: ("rules",)}.get(depth, ())
        for kind in below if depth != 2 or "/topics/" in path else ():
            for each in (await self.ask("GET", f"{path}/{kind}"))["value"]:
                inner = f"{path}/{kind}/{each['name']}"
                kept = {name: value for name, value in each["properties"].items() if name not in READ_ONLY}
                found[inner.partition("/")[2]] = kept
                found |= await self.content(inner)
        return found


@BOTH
@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_deployment_equals_what_provision_creates(
    language: str, partitioned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier: tuple[object, ...] = ("premium", 2) if partitioned else ()
    wanted = [("contoso", 0), ("contoso-dr", 0, *tier), ("copy", 0, *tier)]
    async with Emulator(wanted, options=EmulatorOptions(identity=True)) as emulator, ClientSession() as session:
        use_identity(emulator, monkeypatch)
        pair, manager = pair_on(emulator), Manager(emulator, session)
        for namespace in emulator.namespaces.values():
            namespace.create_queue("elsewhere")
        await provision(pair, entities=ENTITIES, group=GROUP)
        code = namespace_code(pair, "secondary", ENTITIES, partitioned=partitioned)
        await manager.deploy("copy", read(language, code))
        expected, found = await manager.content("contoso-dr"), await manager.content("copy")
        assert "queues/contoso~x-servicebus-transfer~2" in found
        if language == "bicep":
            default = found.pop("topics/events~all/subscriptions/audit/rules/$Default")
            assert default["sqlFilter"]["sqlExpression"] == "1=0"
        assert found == expected
        copied = replace(pair, secondary=endpoint_on(emulator, "copy"))
        again = await provision(copied, entities=ENTITIES, group=GROUP)
        differing = [item.name for item in again if item.outcome is not Outcome.EXISTING]
        assert differing == (["events/all/Subscriptions/audit"] if language == "bicep" else [])


@BOTH
def test_every_resource_matches_the_published_schema(language: str) -> None:
    resources = read(language, code_of(ENTITIES.entities, partitioned=True))
    checked = [each for each in resources if "method" not in each.properties]
    assert {each.type for each in checked} == set(TYPES.values())
    for each in checked:
        definition = {**SCHEMA["definitions"][DEFINITIONS[each.type]], "definitions": SCHEMA["definitions"]}
        Draft4Validator(definition).validate(each.properties)
        assert each.properties.keys() <= definition["properties"].keys()


@needs_terraform
def test_both_languages_declare_the_same() -> None:
    first, second = ({each.symbol: each for each in read(name, code_of(ENTITIES.entities))} for name in RENDERERS)
    assert first.pop("default_rule_events_all_audit").properties["sqlFilter"] == {"sqlExpression": "1=0"}
    action = second.pop("default_rule_events_all_audit")
    assert (action.properties["method"], action.needs) == (
        "DELETE",
        ("rule_events_all_audit_big", "rule_events_all_audit_ours"),
    )
    assert first == second


HOSTILE = [
    *("${x}", "$${x}", "\\${x}", "$", "{", "%{if}", "%%{", "EOT", "[concat()]"),
    *("'", '"', "'''", "\\", "\\n", "\n\r\t\0", "\u2028", "\u202e", "é", "\U0001f600"),
]
TEXTS = st.text(st.one_of(st.sampled_from("${}%'\"\\\n[]# /*"), st.characters(codec="utf-8")), min_size=1, max_size=30)


def named(texts: list[str]) -> list[AnyEntity]:
    """Return entities that hold each text in every place where text is free."""
    pairs = tuple((text, text) for text in sorted(set(texts)))
    return [
        *(Queue(f"q{number}", user_metadata=text) for number, text in enumerate(texts)),
        Topic("t"),
        Subscription("t", "s"),
        *(Rule("t", "s", f"r{number}", SqlFilter(text), text) for number, text in enumerate(texts)),
        Rule("t", "s", "c", CorrelationFilter(label=texts[0], properties=pairs)),
    ]


def check_texts(language: str, texts: list[str]) -> None:
    found = {each.symbol: each.properties for each in read(language, code_of(named(texts)))}
    for number, text in enumerate(texts):
        rule = found[f"rule_t_s_r{number}"]
        assert found[f"queue_q{number}"]["userMetadata"] == text
        assert (rule["sqlFilter"], rule["action"]) == ({"sqlExpression": text}, {"sqlExpression": text})
    assert found["rule_t_s_c"]["correlationFilter"] == {"label": texts[0], "properties": {text: text for text in texts}}


@BOTH
def test_hostile_texts_survive(language: str) -> None:
    check_texts(language, HOSTILE)


# The parser of these tests, unlike Bicep, takes two slashes at the start of a string for a comment.
@given(st.lists(TEXTS.filter(lambda text: not text.startswith("//")), min_size=1, max_size=20, unique=True))
def test_any_text_survives_bicep(texts: list[str]) -> None:
    check_texts("bicep", texts)


@needs_terraform
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(TEXTS.map(lambda text: unicodedata.normalize("NFC", text)), min_size=20, max_size=60, unique=True))
def test_any_text_in_nfc_survives_terraform(texts: list[str]) -> None:
    check_texts("terraform", texts)


def test_text_that_terraform_would_change_is_refused() -> None:
    decomposed = unicodedata.normalize("NFD", "é")
    with pytest.raises(UsageError, match="Terraform would change the characters of 'e"):
        terraform(code_of([Queue("q", user_metadata=decomposed)]))
    assert (
        read_bicep(bicep(code_of([Queue("q", user_metadata=decomposed)])))[-1].properties["userMetadata"] == decomposed
    )


PATHS = st.text("aA1.-_/", min_size=1, max_size=8).filter(
    lambda path: all(each not in ("", ".", "..") for each in path.split("/"))
)


@given(st.lists(PATHS, min_size=1, max_size=30, unique_by=str.lower))
def test_every_entity_has_a_symbol_of_its_own(paths: list[str]) -> None:
    found = read_bicep(bicep(code_of(map(Queue, paths))))[4:]
    assert [each.name for each in found] == [path.replace("/", "~") for path in paths]
    assert len({each.symbol.lower() for each in found}) == len(paths)
    assert all(each.symbol.isidentifier() and each.symbol.isascii() for each in found)


@needs_terraform
@pytest.mark.parametrize("partitioned", [False, True])
def test_terraform_is_formatted(partitioned: bool, tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(terraform(code_of(ENTITIES.entities, partitioned=partitioned)), "utf-8")
    run_terraform(tmp_path, "fmt", "-check", "-diff")


@pytest.mark.parametrize("language", RENDERERS)
def test_a_file_is_the_same_each_time_and_has_no_endpoint(language: str) -> None:
    text = RENDERERS[language](code_of(ENTITIES.entities))
    assert text == RENDERERS[language](code_of(ENTITIES.entities))
    assert "servicebus.windows.net" not in text
    assert "Needs elsewhere, which exists outside this file." in text.splitlines()[2]


def test_messages_outlive_a_mistaken_apply() -> None:
    text = terraform(code_of(ENTITIES.entities))
    kept = sum(each.entity.kind != "rule" for each in code_of(ENTITIES.entities).resources)
    assert text.count("prevent_destroy = true") == kept + 1
    assert text.count("ignore_changes  = [body.properties.maxSizeInMegabytes]") == 1


def test_the_primary_has_no_backlog_queues() -> None:
    code = code_of([Queue("orders")], "primary")
    assert (code.namespace, [each.name for each in read_bicep(bicep(code))]) == ("contoso", ["orders"])
    assert "backlog" not in terraform(code)


def test_entities_that_provision_refuses_are_refused() -> None:
    with pytest.raises(NameInvalid, match="has the name of a backlog queue"):
        code_of([Queue("contoso/x-servicebus-transfer/0")])
    with pytest.raises(UsageError, match="max_delivery_count"):
        code_of([Queue("q", max_delivery_count=0)])


def test_bicep_has_a_limit_of_resources() -> None:
    with pytest.raises(UsageError, match="801 resources: a Bicep file deploys at most 800"):
        bicep(code_of(Queue(f"q{number}") for number in range(797)))
    assert namespace_code(unconnected_pair(4), "secondary", NO_ENTITIES).resources == ()
