"""Exported code: its resources are what provisioning creates, and every text survives both languages."""

import base64
import json
import os
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tree_sitter_bicep
from aiohttp import ClientSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator
from tree_sitter import Language, Node, Parser
from yarl import URL

from sbpair.azure.descriptions import name_of
from sbpair.backlog import queue_path
from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.errors import NameInvalid, UsageError
from sbpair.management.entities_file import EntitiesDocument, parse_entities
from sbpair.management.provisioning import provision
from sbpair.model.entities import AnyEntity, CorrelationFilter, Queue, Rule, RuleValue, Subscription, Topic
from sbpair.model.pair import ResourceGroup, Side
from sbpair.model.report import Outcome
from sbpair.planning.entity_code import (
    TYPES,
    CodeResource,
    NamespaceCode,
    bicep,
    bicep_literal,
    namespace_code,
    terraform,
    terraform_literal,
)
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.golden import check_golden
from tests.kit.pairs import endpoint_on, pair_on, unconnected_pair, use_identity

GROUP = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"
TERRAFORM = shutil.which("terraform")
SCHEMA = json.loads((FOLDER / "resource_schema.json").read_text())
DEFINITIONS = dict(
    zip(TYPES, ("SBQueueProperties", "SBTopicProperties", "SBSubscriptionProperties", "Ruleproperties"), strict=True)
)
ENTITIES = parse_entities((FOLDER / "entities.toml").read_text(), "entities.toml")

needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="needs Terraform")


def code_of(
    entities: Iterable[AnyEntity] = (), side: Side = "secondary", *, partitioned: bool = False
) -> NamespaceCode:
    document = EntitiesDocument(tuple(entities))
    return namespace_code(unconnected_pair(4), side, document, partitioned=partitioned)


def run_terraform(folder: Path, *arguments: str, text: str = "") -> str:
    assert TERRAFORM is not None
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        [TERRAFORM, *arguments], cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def parsed(text: str) -> Node:
    """Return the syntax of Bicep, by a published grammar."""
    root = Parser(Language(tree_sitter_bicep.language())).parse(text.encode()).root_node
    assert not root.has_error, text
    return root


# What is deployed.


@pytest.mark.parametrize("partitioned", [False, True])
async def test_deployed_resources_equal_what_provision_creates(
    partitioned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Create each resource through Azure Resource Manager, after its parent and its needs, as both tools do."""
    tier: tuple[object, ...] = ("premium", 2) if partitioned else ()
    wanted = [("contoso", 0), ("contoso-dr", 0, *tier), ("copy", 0, *tier)]
    async with Emulator(wanted, options=EmulatorOptions(identity=True)) as emulator, ClientSession() as session:
        use_identity(emulator, monkeypatch)
        pair = pair_on(emulator)
        for namespace in emulator.namespaces.values():
            namespace.create_queue("elsewhere")
        await provision(pair, entities=ENTITIES, group=GROUP)
        code = namespace_code(pair, "secondary", ENTITIES, partitioned=partitioned)
        queues = [
            replace(code.backlog, symbol=path, name=name_of(path))
            for path in map(partial(queue_path, "contoso"), range(3))
        ]
        resources = {each.symbol: each for each in (*queues, *code.resources, *code.default_rules)}
        order = TopologicalSorter({each.symbol: {each.parent, *each.needs} - {""} for each in resources.values()})
        paths = {"": "copy"}
        for each in map(resources.__getitem__, order.static_order()):
            kind = TYPES[each.entity.kind].partition("@")[0].rpartition("/")[2]
            paths[each.symbol] = f"{paths[each.parent]}/{kind}/{each.name}"
            await ask(emulator, session, "PUT", paths[each.symbol], {"properties": each.properties})

        async def differences() -> list[str]:
            copied = replace(pair, secondary=endpoint_on(emulator, "copy"))
            found = await provision(copied, entities=ENTITIES, group=GROUP, dry_run=True)
            return [item.name for item in found if item.outcome is not Outcome.EXISTING]

        # Bicep can only replace this rule by one that accepts nothing, and Terraform deletes it.
        assert await differences() == []
        [rule] = code.default_rules
        assert rule.properties["sqlFilter"] == {"sqlExpression": "1=0"}
        await ask(emulator, session, "DELETE", paths[rule.symbol])
        assert await differences() == []


async def ask(emulator: Emulator, session: ClientSession, method: str, path: str, body: object = None) -> None:
    token, _ = emulator.bearers.issue(ARM_AUDIENCES[1], emulator.clock.now_ms())
    group = f"/subscriptions/{GROUP.subscription}/resourceGroups/{GROUP.name}/providers/Microsoft.ServiceBus/namespaces"
    authority = emulator.namespaces["contoso"].authority
    url = URL(f"http://{authority}{group}/{path}?api-version=2026-01-01", encoded=True)
    async with session.request(method, url, json=body, headers={"Authorization": f"Bearer {token}"}) as answer:
        assert answer.status < 300, f"{method} {path}: {answer.status} {await answer.text()}"


@pytest.mark.parametrize("partitioned", [False, True])
def test_every_resource_matches_the_published_schema(partitioned: bool) -> None:
    code = code_of(ENTITIES.entities, partitioned=partitioned)
    resources: list[CodeResource] = [code.backlog, *code.resources, *code.default_rules]
    assert {each.entity.kind for each in resources} == TYPES.keys()
    for each in resources:
        definition = {**SCHEMA["definitions"][DEFINITIONS[each.entity.kind]], "definitions": SCHEMA["definitions"]}
        Draft4Validator(definition).validate(each.properties)
        assert each.properties.keys() <= definition["properties"].keys()


PATHS = st.text("aA1.-_/", min_size=1, max_size=8).filter(
    lambda path: all(each not in ("", ".", "..") for each in path.split("/"))
)


@given(st.lists(PATHS, min_size=1, max_size=30, unique_by=str.lower))
def test_every_entity_has_a_symbol_of_its_own(paths: list[str]) -> None:
    found = code_of(map(Queue, paths)).resources
    assert [each.name for each in found] == [path.replace("/", "~") for path in paths]
    assert len({each.symbol.lower() for each in found}) == len(paths)
    assert all(each.symbol.isidentifier() and each.symbol.isascii() for each in found)


# The files.


def test_the_files_are_as_they_were_last_agreed() -> None:
    code = code_of(ENTITIES.entities)
    check_golden(GOLDEN / "secondary.tf", terraform(code))
    check_golden(GOLDEN / "secondary.bicep", bicep(code))
    parsed(bicep(code))


@needs_terraform
def test_terraform_parses_the_golden_files_and_changes_no_layout() -> None:
    run_terraform(GOLDEN, "fmt", "-check", "-diff")


@pytest.mark.parametrize("render", [bicep, terraform])
def test_the_primary_has_no_backlog_queues(render: Callable[[NamespaceCode], str]) -> None:
    code = code_of([Queue("orders")], "primary")
    assert (code.namespace, [each.name for each in code.resources]) == ("contoso", ["orders"])
    assert "backlog" not in render(code).lower()


def test_entities_that_provision_refuses_are_refused() -> None:
    with pytest.raises(NameInvalid, match="has the name of a backlog queue"):
        code_of([Queue("contoso/x-servicebus-transfer/0")])
    with pytest.raises(UsageError, match="max_delivery_count"):
        code_of([Queue("q", max_delivery_count=0)])
    rule = Rule("t", "s", "r", CorrelationFilter(typed=(RuleValue.of("n", 5),)))
    with pytest.raises(UsageError, match="compares with a value that is not text"):
        code_of([Topic("t"), Subscription("t", "s"), rule])


def test_bicep_has_a_limit_of_resources() -> None:
    with pytest.raises(UsageError, match="801 resources: a Bicep file deploys at most 800"):
        bicep(code_of(Queue(f"q{number}") for number in range(797)))


# Their texts.


@pytest.mark.parametrize(
    ("text", "in_bicep", "in_terraform"),
    [
        ("it's", r"'it\'s'", '"it\'s"'),
        ('"', "'\"'", r'"\""'),
        ("\\n", r"'\\n'", r'"\\n"'),
        ("\n\r\t", r"'\n\r\t'", r'"\n\r\t"'),
        ("${x}", r"'\${x}'", r'"\u0024{x}"'),
        ("$${x}", r"'$\${x}'", r'"$\u0024{x}"'),
        ("\\${x}", r"'\\\${x}'", r'"\\\u0024{x}"'),
        ("%{if}", "'%{if}'", r'"\u0025{if}"'),
        ("$ { % é", "'$ { % é'", '"$ { % é"'),
        ("\0\u202e", r"'\u{0}\u{202e}'", r'"\u0000\u202e"'),
        ("\U000e0001", r"'\u{e0001}'", r'"\U000e0001"'),
        ("\U0001f600", "'\U0001f600'", '"\U0001f600"'),
    ],
)
def test_a_text_is_a_literal_without_an_expression(text: str, in_bicep: str, in_terraform: str) -> None:
    assert (bicep_literal(text), terraform_literal(text)) == (in_bicep, in_terraform)


TEXTS = st.text(st.one_of(st.sampled_from("${}%'\"\\\n[]# /*"), st.characters(codec="utf-8")), min_size=1, max_size=30)


# The published grammar, unlike Bicep, takes two slashes at the start of a string for a comment.
@given(TEXTS.filter(lambda text: not text.startswith("//")))
def test_any_text_is_one_string_of_bicep(text: str) -> None:
    [parameter] = parsed(f"param x string = {bicep_literal(text)}\n").named_children
    assert {each.type for each in parameter.named_children[-1].named_children} <= {"string_content", "escape_sequence"}


@needs_terraform
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(TEXTS.map(lambda text: unicodedata.normalize("NFC", text)), min_size=20, max_size=60, unique=True))
def test_any_text_survives_terraform(texts: list[str]) -> None:
    values = {"texts": {f"t{number}": text for number, text in enumerate(texts)}, **{text: text for text in texts}}
    with TemporaryDirectory() as folder:
        (Path(folder) / "main.tf").write_text(f"locals {{\n  values = {terraform_literal(values)}\n}}\n", "utf-8")
        shown = run_terraform(Path(folder), "console", text="base64encode(jsonencode(local.values))\n")
    assert json.loads(base64.b64decode(json.loads(shown))) == values


def test_text_that_terraform_would_change_is_refused() -> None:
    decomposed = unicodedata.normalize("NFD", "é")
    with pytest.raises(UsageError, match="Terraform would change the characters of 'e"):
        terraform(code_of([Queue("q", user_metadata=decomposed)]))
    assert f"userMetadata: '{decomposed}'" in bicep(code_of([Queue("q", user_metadata=decomposed)]))
