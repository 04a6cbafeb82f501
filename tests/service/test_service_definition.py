"""Definitions of services: golden files, valid by published schemas, and with every value as it was given."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.config import load_pair
from sbpair.gateway.local_key import connection_string
from sbpair.service.service_definition import GATEWAY_KINDS, KINDS, SCHEDULED, ServiceDefinition, definition_text
from sbpair.template import ESCAPES
from tests.kit.command import Here
from tests.kit.golden import check_golden

GOLDEN = Path(__file__).parent / "golden"
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
HOSTILE = ("--lease", "sbpair-lease", "--where", "a = '$(X) ${Y} %n {{name}} \\ \"' AND b <> 'ö\t'")
MIXED = {
    "SBPAIR_PRIMARY_NAMESPACE": "contoso",
    "SBPAIR_PRIMARY_TRANSPORT": "websocket",
    "SBPAIR_PRIMARY_PROXY": PROXY,
    "SBPAIR_SECONDARY_CONNECTION_STRING": KEY.replace("contoso", "contoso-dr"),
    "SBPAIR_SECONDARY_ENDPOINT": "10.0.0.4:5671",
}
EVERY = [(kind, "") for kind in KINDS] + [(kind, "*/15 * * * *") for kind in SCHEDULED]


def text_of(
    kind: str,
    schedule: str = "",
    environ: dict[str, str] = MIXED,
    words: tuple[str, ...] = HOSTILE,
    runs: str = "syphon",
) -> str:
    pair = load_pair(environ=environ, config=Path("/dev/null"))
    return definition_text(
        ServiceDefinition(kind, pair, "true", "sbpair:1.0", "/bin/true", schedule, words, "the origin", runs)
    )


ALLOWED = ("--allow-user", "1000", *HOSTILE[2:])


@pytest.mark.parametrize("kind", GATEWAY_KINDS)
def test_a_gateways_definition_is_as_agreed_and_has_no_secret(kind: str) -> None:
    text = text_of(kind, words=ALLOWED, runs="gateway")
    assert "c2VjcmV0" not in text
    check_golden(GOLDEN / GATEWAY_KINDS[kind], text)


@pytest.mark.parametrize("environ", [MIXED, KEYS, IDENTITIES])
def test_a_gateway_starts_before_the_application_in_a_valid_pod(environ: dict[str, str]) -> None:
    documents = list(yaml.safe_load_all(text_of("kubernetes", "", environ, ALLOWED, "gateway")))
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    for each in documents:
        validate.validate(each, "1.30", strict=True)
    pod = documents[-1]["spec"]["template"]["spec"]
    [gateway], [application] = pod["initContainers"], pod["containers"]
    assert gateway["restartPolicy"] == "Always"
    assert [*ALLOWED[:2]] == gateway["args"][-4:-2]
    assert application["securityContext"]["runAsUser"] == 1000
    string = next(each["value"] for each in application["env"] if each["name"] == "SERVICEBUS_CONNECTION_STRING")
    assert string == connection_string("localhost:5672", "$(SBPAIR_GATEWAY_KEY)", ";UseDevelopmentEmulator=true")


def test_the_unit_of_a_gateway_knows_the_users_of_others() -> None:
    """Users of other namespaces have no ids in one of its own, and netlink is how they are asked for."""
    lines = text_of("systemd", words=ALLOWED, runs="gateway").splitlines()
    assert {"PrivateUsers=no", "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK"} <= {*lines}
    assert {"PrivateUsers=yes", "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX"} <= {
        *text_of("systemd").splitlines()
    }


@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_a_definition_is_as_agreed_and_has_no_secret(kind: str, schedule: str) -> None:
    text = text_of(kind, schedule)
    assert "c2VjcmV0" not in text
    check_golden(GOLDEN / f"{'schedule' if schedule else 'watch'}-{KINDS[kind]}", text)


@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_a_definition_has_no_more_than_the_pair_needs(kind: str, schedule: str) -> None:
    keys, identities = (text_of(kind, schedule, environ) for environ in (KEYS, IDENTITIES))
    assert [name for name in SECRETS if name not in keys] == []
    assert ("CLIENT_ID" in keys, 'workload.identity/use: "true"' in keys) == (False, False)
    assert [word for word in ("CONNECTION", "secret", "EnvironmentFile", ".txt") if word in identities] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_key_stays_one_on_the_same_machine_alone(tmp_path: Path, kind: str) -> None:
    (tmp_path / "key").write_text(KEY.replace("contoso", "contoso-dr"))
    file = {"SBPAIR_SECONDARY_NAMESPACE": "", "SBPAIR_SECONDARY_CONNECTION_STRING_FILE": str(tmp_path / "key")}
    text = text_of(kind, environ=IDENTITIES | file)
    assert ("CONNECTION_STRING_FILE" in text) == (str(tmp_path) in text) == (kind == "systemd")
    assert "SBPAIR_SECONDARY_CONNECTION_STRING" in text
    assert "c2VjcmV0" not in text


@pytest.mark.parametrize(
    ("word", "in_unit"),
    [
        ("--rate=1.5,a@b:/c+d", "--rate=1.5,a@b:/c+d"),
        ("", '""'),
        ("a b", '"a b"'),
        ('"\\n', r'"\"\\n"'),
        ("'$x ${y} $$", '"\'$$x $${y} $$$$"'),
        ("%n", "%%n"),
        ("ö\t\u2028", r'"ö\U00000009\U00002028"'),
    ],
)
def test_a_word_of_a_unit_is_escaped_as_systemd_reads_it(word: str, in_unit: str) -> None:
    """Nothing but a dollar sign differs in an assignment: systemd.syntax(7), systemd.service(5)."""
    assert ESCAPES["command"](word) == in_unit
    assert ESCAPES["systemd"](word) == in_unit.replace("$$", "$")


@settings(max_examples=40)
@given(word=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_any_text_survives_the_quoting_of_yaml(word: str) -> None:
    *_, deployment = yaml.safe_load_all(text_of("kubernetes", words=(word,)))
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1].replace("$$(", "$(") == word
    compose = yaml.safe_load(text_of("compose", words=(word,)))
    assert compose["services"]["syphon"]["command"][-1].replace("$$", "$") == word


@pytest.mark.parametrize(("runs", "words"), [("syphon", HOSTILE), ("gateway", ALLOWED)])
def test_systemd_finds_no_mistake_and_rates_the_unit_as_safe(tmp_path: Path, runs: str, words: tuple[str, ...]) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "sbpair-syphon.service"
    unit.write_text(text_of("systemd", words=words, runs=runs))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    found = [line for line in done.stderr.splitlines() if unit.name in line]
    older = [line for line in found if "Unknown key 'RestartSteps'" in line or "'RestartMaxDelaySec'" in line]
    assert (done.returncode, found) == (0, older), "systemd ignores two keys before version 254"
    rate = ["systemd-analyze", "security", "--offline=yes", f"--threshold={15 if runs == 'syphon' else 20}", unit]
    done = subprocess.run(rate, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("environ", [MIXED, KEYS, IDENTITIES])
@pytest.mark.parametrize(("kind", "schedule"), [each for each in EVERY if each[0] != "systemd"])
def test_a_definition_is_valid_by_the_published_schema(kind: str, schedule: str, environ: dict[str, str]) -> None:
    documents = list(yaml.safe_load_all(text_of(kind, schedule, environ)))
    if kind == "kubernetes":
        validate = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
        for each in documents:
            validate.validate(each, "1.30", strict=True)
    elif kind == "compose":
        specification = pytest.importorskip("compose_spec", reason="no parser: pip install compose-spec")
        specification.PyCompose.from_json(json.dumps(documents[0]))
    else:
        assert mistakes(documents[0], "Job" if schedule else "ContainerApp") == []
        documents[0]["properties"]["configuration"]["secretz"] = documents[0]["location"] = 1
        assert len(mistakes(documents[0], "Job" if schedule else "ContainerApp")) == 2


def mistakes(document: Any, name: str) -> list[Any]:
    """Compare a document with the type of a resource in Azure's SDK, where a field that is absent is no mistake."""
    api = pytest.importorskip("azure.mgmt.appcontainers.types", reason="pip install azure-mgmt-appcontainers")
    from azure.mgmt.appcontainers import models
    from pydantic import TypeAdapter, ValidationError

    vars(api).update(vars(models) | vars(api))  # its enumerations
    for each in vars(api).values():
        if hasattr(each, "__required_keys__"):
            each.__pydantic_config__ = {"extra": "forbid"}
    try:
        TypeAdapter(getattr(api, name)).validate_python(document)
    except ValidationError as found:
        return [each["loc"] for each in found.errors() if each["type"] != "missing"]
    return []


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
