"""Relays of the file and the environment: values, their sources, and refusals that name the place."""

from pathlib import Path

import pytest

from sbpair.config.file import has_pair
from sbpair.config.setting import Flags
from sbpair.errors import NameInvalid, SbpairError
from sbpair.model.pair import Identity, SasKey
from sbpair.relay import load_relay_pair
from sbpair.relay.relay_settings import configured_relay, configured_relays

KEY = "c2VjcmV0a2V5"
KEYED = f"SharedAccessKeyName=Root;SharedAccessKey={KEY}"
WEST = f"Endpoint=sb://contoso-dr.servicebus.windows.net/;{KEYED};EntityPath=service-west"
FILE = """
[relays.service.primary]
namespace = "contoso"
path = "service-east"
[relays.service.secondary]
connection_string_env = "WEST"
"""


def write(home: Path, text: str) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    return path


def refused(home: Path, text: str, name: str | None = None, **environ: str) -> SbpairError:
    path = write(home, text)
    with pytest.raises(SbpairError) as caught:
        load_relay_pair(name, config=path, environ={"WEST": WEST, **environ})
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert KEY not in caught.value.message + caught.value.hint
    return caught.value


def test_the_only_relay_of_the_file_is_found(tmp_path: Path) -> None:
    pair = load_relay_pair(config=write(tmp_path, FILE), environ={"WEST": WEST})
    assert (pair.primary.namespace, pair.primary.path) == ("contoso.servicebus.windows.net", "service-east")
    assert pair.primary.credential == Identity()
    assert (pair.secondary.namespace, pair.secondary.path) == ("contoso-dr.servicebus.windows.net", "service-west")
    assert pair.secondary.credential == SasKey("Root", KEY)
    assert KEY not in repr(pair)


def test_a_relay_has_the_certificates_and_the_proxy_of_its_side(tmp_path: Path) -> None:
    more = 'path = "service-east"\nca_file = "/etc/ca.pem"\nproxy_env = "PROXY"'
    path = write(tmp_path, FILE.replace('path = "service-east"', more))
    pair = load_relay_pair(config=path, environ={"WEST": WEST, "PROXY": "http://me:hunter2@proxy.example.com:3128"})
    assert pair.primary.ca_file == "/etc/ca.pem"
    assert pair.primary.proxy.user == "me"
    assert (pair.secondary.ca_file, pair.secondary.proxy) == (None, None)


def test_an_emulator_is_reached_at_its_port_without_tls(tmp_path: Path) -> None:
    west = f"Endpoint=sb://127.0.0.1:5673;{KEYED};UseDevelopmentEmulator=true;EntityPath=hyco"
    pair = load_relay_pair(config=write(tmp_path, FILE), environ={"WEST": west})
    assert (pair.secondary.namespace, pair.secondary.tls) == ("127.0.0.1:5673", False)


def test_the_environment_alone_makes_the_relay_default(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "SBPAIR_RELAY_PRIMARY_NAMESPACE": "contoso",
        "SBPAIR_RELAY_PRIMARY_PATH": "service-east",
        "SBPAIR_RELAY_SECONDARY_CONNECTION_STRING": WEST,
    }
    for name in (None, "default"):
        pair = load_relay_pair(name, environ=environ)
        assert (pair.primary.path, pair.secondary.path) == ("service-east", "service-west")
    assert not has_pair(Flags(), environ)


def test_the_environment_changes_no_other_relay(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    environ = {"WEST": WEST, "SBPAIR_RELAY_PRIMARY_NAMESPACE": "fabrikam", "SBPAIR_RELAY_PRIMARY_PATH": "x"}
    assert load_relay_pair("service", config=path, environ=environ).primary.host == "contoso.servicebus.windows.net"


def test_a_variable_chooses_one_of_several(tmp_path: Path) -> None:
    path = write(tmp_path, FILE + FILE.replace("service.", "other.").replace("service-east", "other-east"))
    environ = {"WEST": WEST, "SBPAIR_RELAY": "other"}
    assert load_relay_pair(config=path, environ=environ).primary.path == "other-east"
    assert load_relay_pair("service", config=path, environ=environ).primary.path == "service-east"
    found = configured_relays(Flags(config=path), environ)
    assert [each.name for each in found] == ["other", "service"]


def test_effective_values_have_sources_and_no_secret(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    found = configured_relay(None, Flags(config=path), {"WEST": WEST}).effective({"WEST": WEST})
    assert {key.rpartition(".")[2] for key in found} == {"namespace", "name", "path", "sign_in", "ca_file", "proxy"}
    primary = found["relays.service.primary.path"]
    assert (primary.value, primary.source) == ("service-east", f"{path}:4 [relays.service.primary]")
    secondary = found["relays.service.secondary.sign_in"]
    assert (secondary.value, secondary.source) == ("key Root ***", "WEST")
    assert KEY not in str(found)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('path = "service-east"', 'pfad = "x"', "[relays.service.primary]: unknown key 'pfad'"),
        ('path = "service-east"', "path = 3", "[relays.service.primary]: path must be text in quotes"),
        ('path = "service-east"', 'path = "a/../b"', "[relays.service.primary]: 'a/../b' is not the path"),
        ('path = "service-east"', "", "the primary of relay 'service' has no path"),
        ('path = "service-east"', 'transport = "tcp"', "[relays.service.primary]: unknown key 'transport'"),
        ('path = "service-east"', 'path = "x"\nendpoint = "h:1"', "[relays.service.primary]: unknown key 'endpoint'"),
        ('namespace = "contoso"\n', "", "relay 'service' has no primary namespace"),
        ('namespace = "contoso"', 'namespace = "contoso-dr"', "both relay endpoints are in contoso-dr"),
        ('namespace = "contoso"', 'namespace = "a b"', "[relays.service.primary]: expected a namespace"),
        ('namespace = "contoso"', f'namespace = "{WEST}"', "holds a connection string, which is a secret"),
        ('namespace = "contoso"', 'namespace = "c"\nproxy = "http://u:p@h:1"', "proxy has a user or a password"),
        ('"WEST"', '"EAST"', "[relays.service.secondary]: the variable EAST is not set"),
        ('"WEST"', '"WEST"\nnamespace = "x"', "has both namespace and connection_string_env"),
        ('"WEST"', '"WEST"\npath = "other"', "WEST: the connection string is invalid: its EntityPath is not the path"),
        ("[relays.service.primary]", "[relays.service.third]", "[relays.service]: unknown key 'third'"),
        ("[relays.service.primary]", "[relay.service.primary]", "unknown key 'relay'"),
        ("[relays.service.primary]", '[relays."a b".primary]', "'a b' cannot be the name of a relay"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in FILE
    assert what in refused(tmp_path, FILE.replace(old, new)).message


def test_a_wrong_name_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, FILE, "servce").hint == "did you mean service?"
    assert refused(tmp_path, FILE, "x").hint == "there are: service"
    assert refused(tmp_path, "", None).message == "no relay is configured"
    assert refused(tmp_path, FILE + FILE.replace("service.", "other.")).hint == "choose one: other | service"
    assert "which is a secret" in refused(tmp_path, FILE, WEST).message


def test_a_wrong_environment_is_refused(tmp_path: Path) -> None:
    both = {"SBPAIR_RELAY_PRIMARY_NAMESPACE": "x", "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING": WEST}
    assert "has both" in refused(tmp_path, FILE, **both).message
    two_paths = refused(tmp_path, FILE, WEST=f"{WEST};EntityPath=x")
    assert "several EntityPaths" in two_paths.message
    assert isinstance(refused(tmp_path, FILE, WEST=WEST.replace("service-west", "/x/")), NameInvalid)
    assert (
        "SBPAIR_RELAY_PRIMARY_PATH holds a connection string"
        in refused(tmp_path, FILE, SBPAIR_RELAY_PRIMARY_PATH=WEST).message
    )
