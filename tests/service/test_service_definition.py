"""Definitions of services: valid by published schemas, free of secrets, and with every value as it was given."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import typing
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.config import load_pair
from sbpair.service.service_definition import KINDS, SCHEDULED, ServiceDefinition, definition_text, systemd_word
from tests.service.systemd_words import split_words

if typing.TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from tests.kit.command import Here

KEY = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
PROXY = "http://user:c2VjcmV0@proxy:3128"
IDENTITIES = {"SBPAIR_PRIMARY_NAMESPACE": "contoso", "SBPAIR_SECONDARY_NAMESPACE": "contoso-dr"}
KEYS = {
    "SBPAIR_PRIMARY_CONNECTION_STRING": KEY,
    "SBPAIR_SECONDARY_CONNECTION_STRING": KEY.replace("contoso", "contoso-dr"),
    "SBPAIR_SECONDARY_PROXY": PROXY,
    "SBPAIR_PRIMARY_TRANSPORT": "websocket",
    "SBPAIR_PRIMARY_ENDPOINT": "10.0.0.4:5671",
}
SECRETS = ("SBPAIR_PRIMARY_CONNECTION_STRING", "SBPAIR_SECONDARY_CONNECTION_STRING", "SBPAIR_SECONDARY_PROXY")
CRON = "*/15 * * * *"
EVERY = [(kind, schedule) for kind in KINDS for schedule in ("", CRON) if not schedule or kind in SCHEDULED]


def pair_of(environ: dict[str, str]) -> Pair:
    return load_pair(environ=environ, config=Path("/dev/null"))


def service(environ: dict[str, str] = KEYS, **changed: Any) -> ServiceDefinition:
    plain = ServiceDefinition(pair_of(environ), "true", "sbpair:1.0", "/opt/sbpair/bin/sbpair", "", (), "origin")
    return replace(plain, **changed)


def documents(kind: str, definition: ServiceDefinition) -> list[Any]:
    return list(yaml.safe_load_all(definition_text(kind, definition)))


def words_of(kind: str, definition: ServiceDefinition) -> list[str]:
    """Return the words that the service starts, as that kind of service reads them."""
    text = definition_text(kind, definition)
    if kind == "systemd":
        [line] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        return split_words(line)[1:]
    [[words]] = [
        [each[key] for each in _containers(document) for key in ("args", "command") if key in each]
        for document in yaml.safe_load_all(text)
        if _containers(document)
    ]
    escaped = {"kubernetes": "$$(", "compose": "$$"}.get(kind)
    return [word.replace(escaped, escaped[1:]) if escaped else word for word in words]


def _containers(document: Any) -> list[dict[str, Any]]:
    if not isinstance(document, dict):
        return []
    found = list(document.get("containers") or (document.get("services") or {}).values())
    return found + [each for value in document.values() for each in _containers(value)]


@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_a_definition_names_its_secrets_and_has_none(kind: str, schedule: str) -> None:
    text = definition_text(kind, service(schedule=schedule))
    assert "c2VjcmV0" not in text
    assert [name for name in SECRETS if name not in text] == []
    assert service().secrets == SECRETS
    identities = service(IDENTITIES, schedule=schedule)
    assert identities.secrets == ()
    without = definition_text(kind, identities)
    assert [word for word in ("CONNECTION", "secret", "EnvironmentFile") if word in without] == []


@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_the_words_of_the_command_are_those_of_the_options(kind: str, schedule: str) -> None:
    more = ("--lease", "sbpair-lease", "--where", "a = '$(X) ${Y} %n \\ \"' AND b <> 'ö\t'")
    words = words_of(kind, service(schedule=schedule, words=more))
    assert words[:4] == ["syphon", "--once" if schedule else "--watch", "--count", "10"]
    assert words[-4:] == [*more]
    assert ("--health-port" in words) is (kind != "systemd" and not schedule)


@settings(max_examples=40)
@given(word=st.text(min_size=1, max_size=40))
def test_any_text_survives_the_quoting(word: str) -> None:
    word = word.encode(errors="replace").decode().replace("\0", "")
    assert split_words(systemd_word(word).replace("$", "$$")) == [word]
    plain = service(IDENTITIES, words=("--where", word))
    assert words_of("kubernetes", plain)[-1] == words_of("compose", plain)[-1] == word


def test_systemd_finds_no_mistake_and_rates_the_unit_as_safe(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "sbpair-syphon.service"
    unit.write_text(definition_text("systemd", service(program="/bin/true")))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
    rate = ["systemd-analyze", "security", "--offline=yes", "--threshold=15", unit]
    done = subprocess.run(rate, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("schedule", ["", CRON])
def test_the_kubernetes_objects_are_valid_by_the_published_schema(schedule: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    for environ in (KEYS, IDENTITIES):
        found = documents("kubernetes", service(environ, schedule=schedule))
        assert [each["kind"] for each in found][2] == ("CronJob" if schedule else "Deployment")
        for each in found:
            assert each["metadata"]["name"] == "true"
            validate.validate(each, "1.30", strict=True)


def test_the_compose_file_is_valid_by_its_specification() -> None:
    specification = pytest.importorskip("compose_spec", reason="no parser: pip install compose-spec")
    for environ in (KEYS, IDENTITIES):
        [document] = documents("compose", service(environ))
        specification.PyCompose.from_json(json.dumps(document))
        environment = document["services"]["syphon"]["environment"]
        assert [name for name, value in environment.items() if value is None] == [*service(environ).secrets]


@pytest.mark.parametrize("schedule", ["", CRON])
def test_the_container_app_is_valid_by_the_types_of_its_api(schedule: str) -> None:
    api = pytest.importorskip("azure.mgmt.appcontainers.types", reason="pip install azure-mgmt-appcontainers")
    names = {**vars(importlib.import_module("azure.mgmt.appcontainers.models")), **vars(api)}  # its enumerations
    for environ in (KEYS, IDENTITIES):
        [document] = documents("containerapp", service(environ, schedule=schedule))
        assert list(mistakes(document, api.Job if schedule else api.ContainerApp, names)) == []
        container = document["properties"]["template"]["containers"][0]
        assert ("probes" in container) is not bool(schedule)
    document["properties"]["configuration"]["secretz"] = document["location"] = 1
    found = list(mistakes(document, api.Job if schedule else api.ContainerApp, names))
    assert found == [".location: 1", ".properties.configuration: unknown secretz"]


def mistakes(value: Any, kind: Any, names: dict[str, Any], where: str = "") -> typing.Iterator[str]:
    """Yield where a value differs from a typed dictionary of an SDK."""
    kind = names[kind.__forward_arg__] if isinstance(kind, typing.ForwardRef) else kind
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__required_keys__"):
        hints = typing.get_type_hints(kind, names)
        marked = typing.get_type_hints(kind, names, include_extras=True)
        required = {name for name, hint in marked.items() if typing.get_origin(hint) is typing.Required}
        missing = sorted(required - value.keys())
        unknown = sorted(value.keys() - hints.keys())
        yield from (f"{where}: missing {name}" for name in missing)
        yield from (f"{where}: unknown {name}" for name in unknown)
        for name in sorted(value.keys() & hints.keys()):
            yield from mistakes(value[name], hints[name], names, f"{where}.{name}")
    elif origin is list:
        for number, each in enumerate(value):
            yield from mistakes(each, inside[0], names, f"{where}[{number}]")
    elif origin is dict:
        for name, each in value.items():
            yield from mistakes(each, inside[1], names, f"{where}.{name}")
    elif inside:
        closed = [each for each in inside if isinstance(each, type) and issubclass(each, Enum)]
        allowed = [each.value for kinds in closed for each in kinds]
        if allowed and value not in allowed:
            yield f"{where}: {value}"
    elif isinstance(kind, type) and not isinstance(value, (int, float) if kind is float else kind):
        yield f"{where}: {value}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nomad", "Invalid value for 'KIND'"),
        ("systemd --name Sbpair", "--name: 'Sbpair' is not a name for a service"),
        ("systemd --name -x", "--name: '-x' is not a name"),
        (f"systemd --name {'x' * 33}", "is not a name for a service"),
        ("compose --image sbpair:1;x", "--image: 'sbpair:1;x' is not an image"),
        ("systemd --program sbpair", "--program: 'sbpair' is not an absolute path"),
        ("systemd --image sbpair:1", "--image is for containers only"),
        ("compose --program /opt/sbpair/bin/sbpair", "--program is for systemd only"),
        ("systemd --schedule '* * * * *'", "--schedule goes with kubernetes and containerapp only"),
        ("kubernetes --schedule hourly", "--schedule: 'hourly' is not a cron expression"),
        ("kubernetes --schedule '* * * * * *'", "is not a cron expression"),
        ("containerapp --schedule '0 24 * * *'", "is not a cron expression"),
        ("containerapp --name a--b", "--name: 'a--b' is not a name for a service"),
        ("kubernetes --schedule ''", "--schedule is empty"),
        ("systemd --with --frobnicate", "No such option: --frobnicate"),
        ("systemd --with '--rate fast'", "fast"),
        ("systemd --with '--once'", "--with: --once is already in the definition"),
        ("systemd --with '--pair x'", "--with: --pair is already in the definition"),
        ("systemd --with '--health-port 1'", "--with: --health-port is already in the definition"),
        ('systemd --with "--where \'a"', "--with: no closing quotation"),
        ("kubernetes --schedule '* * * * *' --with '--metrics-port 0'", "--metrics-port goes with --watch only"),
        ("systemd --count 0", "must be at least 1"),
    ],
)
def test_a_service_that_would_not_start_is_refused(
    here: Here, monkeypatch: pytest.MonkeyPatch, words: str, expected: str
) -> None:
    for name, value in IDENTITIES.items():
        monkeypatch.setenv(name, value)
    code, out, err = here("service", "print", *shlex.split(words))
    assert (code, out) == (2, "")
    assert expected in err
    assert "\nhint: " in err


def test_the_command_prints_a_file_or_a_document(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    code, text, err = here("service", "print", "compose", "--with", "--lease q", "--count", "3")
    assert (code, err) == (0, "")
    assert text.startswith("# sbpair service print compose --with '--lease q' (version ")
    code, out, err = here("service", "print", "compose", "--with", "--lease q", "--count", "3", "-o", "json")
    assert json.loads(out) == {
        "schema": "sbpair/service/1",
        "kind": "compose",
        "name": "sbpair-syphon",
        "secrets": [*SECRETS],
        "text": text,
    }
    monkeypatch.setenv("SBPAIR_PRIMARY_CA_FILE", "/etc/ssl/own.pem")
    code, out, err = here("service", "print", "kubernetes")
    assert (code, "SBPAIR_PRIMARY_CA_FILE: the container needs /etc/ssl/own.pem" in err) == (0, True)
    assert "without --with '--lease QUEUE', a mover on another machine is not kept away" in err


@pytest.mark.parametrize("program", ["/home/me/.local/bin/sbpair", "/opt/sbpair/bin/sbpair"])
def test_a_unit_warns_of_files_that_it_cannot_see(here: Here, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SBPAIR_SECONDARY_CA_FILE", "/root/own.pem")
    code, out, err = here("service", "print", "systemd", "--program", program)
    assert (code, f"ExecStart={program} " in out) == (0, True)
    assert "SBPAIR_SECONDARY_CA_FILE: the unit cannot see /root/own.pem" in err
    assert (f"--program: the unit cannot see {program}" in err) is not program.startswith("/opt/")
