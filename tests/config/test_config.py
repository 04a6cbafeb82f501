"""Profiles: precedence of layers, sources of values, and refusals."""

import os
import traceback
from pathlib import Path

import pytest

from sbpair.config import Profile, effective, load, load_pair, unknown_variables
from sbpair.config.setting import Flags, Origin, Setting
from sbpair.errors import MachineLacks, SbpairError, UsageError
from sbpair.model.pair import Endpoint, Identity, SasKey, Transport

KEY = "c2VjcmV0a2V5"
FILE = """
[pairs.orders]
backlog_queues = 4
failover_interval = "90s"
ping_interval = "PT1M"
[pairs.orders.primary]
namespace = "contoso"
[pairs.orders.secondary]
namespace = "contoso-dr.servicebus.windows.net"
endpoint = "10.0.0.4:5671"
ca_file = "/etc/ca.pem"
"""


def connection_string(host: str) -> str:
    return f"Endpoint=sb://{host};SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


EMULATORS = {
    "SBPAIR_PRIMARY_CONNECTION_STRING": connection_string("127.0.0.1:5672"),
    "SBPAIR_PRIMARY_NAME": "contoso",
    "SBPAIR_SECONDARY_CONNECTION_STRING": connection_string("127.0.0.1:5673"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config" / "sbpair" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def loaded(home: Path, flags: Flags | None = None, **environ: str) -> Profile:
    return load(flags or Flags(), {"HOME": str(home), **environ})


def refused(home: Path, text: str, flags: Flags | None = None, **environ: str) -> SbpairError:
    write(home, text)
    with pytest.raises(SbpairError) as caught:
        loaded(home, flags, **environ)
    assert KEY not in caught.value.message + caught.value.hint
    assert caught.value.hint
    return caught.value


def test_a_pair_is_read_from_the_only_table_of_the_file(home: Path) -> None:
    write(home, FILE)
    pair = loaded(home).pair
    assert (pair.name, pair.backlog_queues, pair.failover_interval, pair.ping_interval) == ("orders", 4, 90, 60)
    assert (pair.primary.name, pair.primary.authority) == ("contoso", "contoso.servicebus.windows.net")
    assert pair.primary.credential == Identity()
    secondary = pair.secondary
    assert (secondary.host, secondary.port, secondary.tls, secondary.ca_file) == ("10.0.0.4", 5671, True, "/etc/ca.pem")
    assert secondary.authority == "contoso-dr.servicebus.windows.net"


def test_the_environment_alone_makes_a_pair(home: Path) -> None:
    pair = loaded(home, **EMULATORS).pair
    assert (pair.name, pair.primary.name, pair.primary.port, pair.primary.tls) == ("default", "contoso", 5672, False)
    assert isinstance(pair.secondary.credential, SasKey)


def test_flags_win_over_the_environment_and_the_environment_over_the_file(home: Path) -> None:
    write(home, FILE)
    pair = loaded(home, Flags(backlog_queues=7, primary="fabrikam"), SBPAIR_SECONDARY_NAMESPACE="fabrikam-dr").pair
    assert (pair.backlog_queues, pair.primary.name, pair.secondary.name) == (7, "fabrikam", "fabrikam-dr")


def test_a_layer_with_the_address_drops_lower_endpoints(home: Path) -> None:
    write(home, FILE)
    secondary = loaded(home, Flags(secondary="fabrikam-dr")).pair.secondary
    assert (secondary.host, secondary.ca_file) == ("fabrikam-dr.servicebus.windows.net", None)


def test_a_higher_layer_may_change_only_the_endpoint(home: Path) -> None:
    write(home, FILE)
    secondary = loaded(home, SBPAIR_SECONDARY_ENDPOINT="[::1]:9000").pair.secondary
    assert (secondary.host, secondary.port, secondary.name) == ("::1", 9000, "contoso-dr")


def test_a_connection_string_comes_from_the_named_variable(home: Path) -> None:
    text = FILE.replace('namespace = "contoso"', 'connection_string_env = "ORDERS"\nname = "contoso"\ntls = true')
    write(home, text)
    primary = loaded(home, ORDERS=connection_string("127.0.0.1:5672")).pair.primary
    assert (primary.authority, primary.tls, primary.credential) == ("127.0.0.1:5672", True, SasKey("Root", KEY))


def test_one_of_several_pairs_must_be_chosen(home: Path) -> None:
    two = FILE + FILE.replace("orders", "invoices")
    write(home, two)
    assert loaded(home, Flags(pair="invoices")).pair.name == "invoices"
    assert loaded(home, SBPAIR_PAIR="orders").pair.name == "orders"
    assert loaded(home, Flags(pair="invoices"), SBPAIR_PAIR="orders").pair.name == "invoices"
    assert loaded(home, **EMULATORS).pair.name == "default"
    assert "several pairs" in refused(home, two).message


def test_the_file_is_found_by_flag_variable_or_default(home: Path) -> None:
    elsewhere = home / "x" / "sbpair" / "config.toml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(FILE)
    assert loaded(home, Flags(config=elsewhere)).pair.name == "orders"
    assert loaded(home, SBPAIR_CONFIG=str(elsewhere)).pair.name == "orders"
    assert loaded(home, XDG_CONFIG_HOME=str(home / "x")).pair.name == "orders"
    assert loaded(home, XDG_CONFIG_HOME="relative/is/ignored", **EMULATORS).pair.name == "default"


def test_each_pair_has_its_own_state(home: Path) -> None:
    write(home, FILE)
    assert loaded(home).state_directory == home / ".local/state/sbpair/orders"
    assert loaded(home, XDG_STATE_HOME="/var/x").state_directory == Path("/var/x/sbpair/orders")
    assert loaded(home, Flags(state=Path("/here"))).state_directory == Path("/here")


@pytest.mark.parametrize(
    ("flags", "environ", "directory"),
    [
        (Flags(), EMULATORS, "contoso+127.0.0.1"),
        (Flags(), EMULATORS | {"SBPAIR_SECONDARY_NAME": "../x/y"}, "contoso+..%2Fx%2Fy"),
        (Flags(primary="fabrikam"), {}, "fabrikam+contoso-dr"),
        (Flags(backlog_queues=3), {}, "orders"),
    ],
)
def test_other_namespaces_have_their_own_state(
    home: Path, flags: Flags, environ: dict[str, str], directory: str
) -> None:
    write(home, FILE)
    assert loaded(home, flags, XDG_STATE_HOME="/var", **environ).state_directory == Path("/var/sbpair") / directory


def test_load_pair_finds_the_same_pair(home: Path) -> None:
    write(home, FILE)
    assert load_pair("orders", environ={"HOME": str(home)}) == loaded(home).pair


def test_a_traceback_of_load_pair_shows_each_mistake_with_its_hint(home: Path) -> None:
    (home / "pairs.toml").write_text('[pairs.a]\nprimaries = 1\nsecondry = "x"\n')
    with pytest.raises(UsageError) as caught:
        load_pair(config=home / "pairs.toml", environ={"HOME": str(home)})
    shown = "".join(traceback.format_exception(caught.value))
    assert (shown.count("also: "), shown.count("hint: ")) == (1, 2), shown


PROXY = "http://me:nobody%2Fmay%40see@proxy.example.com:3128"
AZURE = "contoso.servicebus.windows.net"
READABLE = EMULATORS["SBPAIR_PRIMARY_CONNECTION_STRING"].replace("127.0.0.1:5672", AZURE)
WRONG_FILES = [
    ("pears = 1", "unknown key 'pears'", "did you mean pairs?"),
    ("pairs = 1", "pairs is not a table", "[pairs.NAME]"),
    ("[pairs]\norders = 1", "[pairs.orders] is not a table", "[table]"),
    ("[pairs.orders\n", "config.toml:1:14: not TOML", "toml.io"),
    (
        FILE.replace("backlog_queues", "backlog_queue"),
        "[pairs.orders]: unknown key 'backlog_queue'",
        "backlog_queues?",
    ),
    (FILE.replace("ca_file", "cafile"), "[pairs.orders.secondary]: unknown key 'cafile'", "did you mean ca_file?"),
    (FILE.replace("ca_file", "zzz"), "unknown key 'zzz'", "known keys: name, namespace"),
    (FILE.replace("= 4", '= "4"'), "backlog_queues must be a whole number", "correct"),
    (FILE.replace("= 4", "= true"), "backlog_queues must be a whole number", "correct"),
    (FILE.replace("= 4", "= 0"), "must be at least 1", "the default is 10"),
    (FILE.replace('"90s"', '"soon"'), "expected a duration such as 90s, got 'soon'", "90s"),
    (FILE.replace('"90s"', '"2h"'), "failover_interval is 7200 s", "60 s"),
    (FILE.replace('"10.0.0.4:5671"', '"10.0.0.4"'), "expected host:port", "127.0.0.1:5672"),
    (FILE.replace('"contoso"', '"con toso"'), "expected a namespace, got 'con toso'", "write contoso"),
    (FILE.replace('"contoso"', '"contoso-dr"'), "same namespace", "unavailable together"),
    (FILE.replace('namespace = "contoso"', 'connection_string_env = "NOPE"'), "NOPE is not set", "export NOPE"),
    (FILE.replace('namespace = "contoso"', f'connection_string = "{KEY}"'), "which is a secret", "export it"),
    (FILE.replace('"contoso"', f'"{connection_string("a.b")}"'), "which is a secret", "connection_string_env"),
    (FILE.replace('namespace = "contoso"', 'namespace = "a"\nconnection_string_env = "B"'), "has both", "keep one"),
    (FILE.replace('namespace = "contoso"', 'name = "a"'), "has no primary namespace", "SBPAIR_PRIMARY_"),
    (FILE.replace("pairs.orders", 'pairs."a/b"'), "'a/b' is not a valid pair name", "letters"),
]
WRONG_LINES = [
    (f'proxy = "{PROXY}"', "proxy has a user or a password, which are secrets"),
    ('proxy = "http://a:1"\nproxy_env = "P"', "has both proxy and proxy_env"),
    ('proxy_env = "Q"', "the variable Q is not set"),
    ('proxy_env = "P"', "P: expected a proxy such as"),
    ("proxy = 3128", "proxy must be text in quotes"),
    ('proxy = "http://a:3128"\ntls = false', "a proxy needs TLS"),
    ('transport = "amqp"', "expected tcp or websocket, got 'amqp'"),
    ("transport = true", "transport must be text in quotes"),
    (f'transport = "{PROXY}"', "transport holds a password, which is a secret"),
    ('connection_string_file = "/a"', "has both namespace and connection_string_file"),
    ("connection_string_file = 1", "connection_string_file must be text in quotes"),
    ('identity = "magic"', "'magic' is not a kind of identity"),
    ("identity = true", "identity must be text in quotes"),
    ('client_id = "a b"', "'a b' is not a valid client_id"),
    ('tenant = "a"', "tenant has no effect for the identity default"),
    ('identity = "cli"\nclient_id = "a"', "client_id has no effect for the identity cli"),
    ('identity = "managed"\nclient_secret_env = "P"', "client_secret has no effect for the identity managed"),
    ('identity = "client-secret"', "the identity client-secret has no client_id and no tenant and no client_secret"),
    ('client_id = "a"\nclient_secret_env = "P"', "the identity client-secret has no tenant"),
    ('authority = "http://login.example.com"', "'http://login.example.com' is not a valid authority"),
    (f'authority = "{PROXY}"', "authority holds a password, which is a secret"),
    ('client_secret = "nobody"', "holds a client secret, which is a secret"),
    ('client_secret_env = "nobody~may"', "client_secret_env must be the name of an environment variable"),
    ('client_secret_env = "nobody"', "the variable that client_secret_env names is not set"),
]
WRONG_VARIABLES = [
    ({}, "pair 'default' has no primary namespace", "SBPAIR_PRIMARY_CONNECTION_STRING"),
    ({"CONNECTION_STRING": f"SharedAccessKey={KEY}"}, "SBPAIR_PRIMARY_CONNECTION_STRING: ", "copy it whole"),
    ({"CONNECTION_STRING": connection_string("127.0.0.1:5672")}, "", "SBPAIR_PRIMARY_NAME"),
    ({"CONNECTION_STRING": READABLE, "NAMESPACE": "contoso"}, "has both", "keep one"),
    ({"CONNECTION_STRING_FILE": "/a", "NAMESPACE": "contoso"}, "has both", "keep one"),
    ({"CONNECTION_STRING_FILE": READABLE}, "SBPAIR_PRIMARY_CONNECTION_STRING_FILE holds", "_CONNECTION_STRING,"),
    ({"CONNECTION_STRING": "https://example.com/secrets/a"}, "URL of another service than Key Vault", "VAULT"),
    (
        {"CONNECTION_STRING": READABLE, "IDENTITY": "cli"},
        "SBPAIR_PRIMARY_IDENTITY: identity is for an identity, and SBPAIR_PRIMARY_CONNECTION_STRING has a key",
        "keep one",
    ),
    ({"CONNECTION_STRING": READABLE, "CLIENT_SECRET": "nobody"}, "client_secret is for an identity", "keep one"),
    ({"NAMESPACE": "a", "CLIENT_SECRET": "nobody"}, "has no client_id", "the secret in SBPAIR_PRIMARY_CLIENT_SECRET"),
    ({"NAMESPACE": "a", "CLIENT_ID": "Endpoint=sb://nobody"}, "SBPAIR_PRIMARY_CLIENT_ID holds", "put it"),
]


@pytest.mark.parametrize(
    ("text", "environ", "says", "hint"),
    [
        *((text, {}, says, hint) for text, says, hint in WRONG_FILES),
        *(
            (FILE.replace('endpoint = "10.0.0.4:5671"', line), {"P": "ftp://me:nobody@p:1"}, says, "")
            for line, says in WRONG_LINES
        ),
        *(
            ("", {f"SBPAIR_PRIMARY_{name}": value for name, value in variables.items()}, says, hint)
            for variables, says, hint in WRONG_VARIABLES
        ),
    ],
)
def test_a_wrong_value_is_refused_with_place_and_hint(
    home: Path, text: str, environ: dict[str, str], says: str, hint: str
) -> None:
    error = refused(home, text, **{"SBPAIR_SECONDARY_NAMESPACE": "b"} | environ if environ and not text else environ)
    assert says in error.message
    assert hint in error.hint
    assert error.exit_code == 2
    assert "nobody" not in error.message + error.hint


@pytest.mark.parametrize(
    ("text", "environ", "says"),
    [
        (FILE + "tls = false\n", {}, "the token of an identity would travel without TLS to 10.0.0.4"),
        ("", {**EMULATORS, "SBPAIR_PRIMARY_CONNECTION_STRING": READABLE}, f"{AZURE} is a namespace of Azure"),
    ],
)
def test_no_token_of_azure_travels_without_tls(home: Path, text: str, environ: dict[str, str], says: str) -> None:
    error = refused(home, text, **environ)
    assert says in error.message
    assert error.hint.startswith("remove ")


def test_an_unknown_pair_is_refused_with_the_nearest_one(home: Path) -> None:
    error = refused(home, FILE, Flags(pair="order"))
    assert (error.message, error.hint) == ("--pair: pair 'order' does not exist", "did you mean orders?")
    assert "orders" in refused(home, FILE, Flags(pair="zzz")).hint


def test_a_pair_of_a_missing_file_is_refused(home: Path) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(home, Flags(pair="orders"))
    assert caught.value.message == "--pair: pair 'orders' does not exist"
    assert caught.value.hint.endswith("/config.toml does not exist: create it, with an example: sbpair config --init")


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("none.toml", UsageError, r"--config: .* does not exist"),
        ("/proc/self/mem", MachineLacks, "cannot be read"),  # it opens, and every read of it fails
        (".", UsageError, "Is a directory"),
        ("latin.toml", UsageError, "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(home: Path, path: str, error: type[SbpairError], says: str) -> None:
    (home / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(error, match=says):
        loaded(home, Flags(config=home / path))


def test_no_repr_shows_a_secret(home: Path) -> None:
    assert KEY not in repr(loaded(home, **EMULATORS))


def test_an_identity_of_each_side_comes_from_environment_or_file(home: Path) -> None:
    mine = 'identity = "client-secret"\nclient_id = "me"\ntenant = "my.example"\nclient_secret_env = "MINE"'
    write(home, FILE.replace('namespace = "contoso"', f'namespace = "contoso"\nca_file = "/a.pem"\n{mine}'))
    theirs = {"SBPAIR_SECONDARY_CLIENT_ID": "it", "SBPAIR_SECONDARY_AUTHORITY": "https://login.microsoftonline.us/"}
    environ = {"MINE": KEY, **theirs}
    profile = loaded(home, **environ)
    authority, secondary = "https://login.microsoftonline.us", profile.pair.secondary
    assert profile.pair.primary.credential == Identity("client-secret", "me", "my.example", secret=KEY)
    assert (profile.pair.primary.key_source, secondary.key_source) == ("MINE", "")
    assert secondary.credential == Identity(client_id="it", authority=authority, ca_file="/etc/ca.pem")
    shown = effective(profile, environ)
    assert KEY not in str(shown) + repr(profile)
    place = f"{home}/.config/sbpair/config.toml:{{}} [pairs.orders.primary]"
    keys = ("primary.sign_in", "primary.identity", "primary.client_secret", "secondary.client_id")
    assert [(shown[key].value, shown[key].source) for key in keys] == [
        ("client-secret identity me of tenant my.example", place.format(7)),
        ("client-secret", place.format(9)),
        ("***", "MINE"),
        ("it", "SBPAIR_SECONDARY_CLIENT_ID"),
    ]
    assert unknown_variables(Flags(), environ) == {}
    assert loaded(home, Flags(secondary="fabrikam"), **environ).pair.secondary.credential == Identity()


@pytest.mark.parametrize("text", ["{}", "{}\n", "{}\r\n", "\ufeff{}"])
def test_a_key_comes_from_a_file_by_environment_or_file(home: Path, text: str) -> None:
    key = home / "key"
    (home / "real").write_text(text.format(connection_string("127.0.0.1:5672")), newline="")
    key.symlink_to("real")
    write(home, FILE.replace('namespace = "contoso"', f'connection_string_file = "{key}"\nname = "contoso"'))
    by_environment = EMULATORS | {"SBPAIR_PRIMARY_CONNECTION_STRING_FILE": str(key)}
    del by_environment["SBPAIR_PRIMARY_CONNECTION_STRING"]
    for environ, origin in (({}, Origin.FILE), (by_environment, Origin.ENVIRONMENT)):
        profile = loaded(home, **environ)
        primary = profile.pair.primary
        assert (primary.authority, primary.present) == ("127.0.0.1:5672", SasKey("Root", KEY))
        assert (primary.key_source, primary.key_file) == (str(key), str(key))
        assert KEY not in repr(profile)
        shown = effective(profile, environ)["primary.sign_in"]
        assert (shown.value, shown.source, shown.origin) == ("key Root ***", str(key), origin)


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (None, UsageError, "cannot be read: No such file"),
        ("directory", UsageError, "cannot be read: Is a directory"),
        ("fifo", UsageError, "cannot be read: not a regular file"),
        ("loop", MachineLacks, "cannot be read"),
        (b"", UsageError, "is empty"),
        (b" \n\n", UsageError, "is empty"),
        (b"\xff\xfe", UsageError, "is not UTF-8"),
        (KEY.encode() * 6000, UsageError, "larger than 65536 bytes"),
        (KEY.encode(), UsageError, "the connection string is invalid"),
        (f"{connection_string('a:1')}\n{KEY}".encode(), UsageError, "UseDevelopmentEmulator is neither"),
        (f"{connection_string('a:1')}\0".encode(), UsageError, "control characters"),
        (b"https://example.com/secrets/key", UsageError, "URL of another service than Key Vault"),
    ],
)
def test_a_wrong_file_of_a_key_is_refused(
    home: Path, content: str | bytes | None, error: type[SbpairError], says: str
) -> None:
    key = home / "key"
    if content == "directory":
        key.mkdir()
    elif content == "fifo":
        os.mkfifo(key)
    elif content == "loop":
        key.symlink_to(key)
    elif isinstance(content, bytes):
        key.write_bytes(content)
    environ = {"SBPAIR_SECONDARY_NAMESPACE": "b", "SBPAIR_PRIMARY_CONNECTION_STRING_FILE": str(key)}
    found = refused(home, "", **environ)
    assert (isinstance(found, error), says in found.message, str(key) in found.message) == (True, True, True)


def test_the_transport_of_a_side_comes_from_flag_environment_or_file(home: Path) -> None:
    write(home, FILE.replace('namespace = "contoso"', 'namespace = "contoso"\ntransport = "websocket"'))
    assert [each.transport for each in sides(loaded(home))] == [Transport.WEBSOCKET, Transport.TCP]
    by_environment = {"SBPAIR_PRIMARY_TRANSPORT": "tcp", "SBPAIR_SECONDARY_TRANSPORT": "websocket"}
    assert [each.transport for each in sides(loaded(home, **by_environment))] == [Transport.TCP, Transport.WEBSOCKET]
    flags = Flags(transport="websocket")
    assert [each.transport for each in sides(loaded(home, flags, **by_environment))] == [Transport.WEBSOCKET] * 2
    assert [each.amqp_address for each in sides(loaded(home, flags))] == [
        "contoso.servicebus.windows.net:443",
        "10.0.0.4:443",
    ]


def test_the_ca_file_of_a_side_comes_from_environment_or_file(home: Path) -> None:
    write(home, FILE)
    assert [each.ca_file for each in sides(loaded(home))] == [None, "/etc/ca.pem"]
    variables = {"SBPAIR_PRIMARY_CA_FILE": "/1.pem", "SBPAIR_SECONDARY_CA_FILE": "/2.pem"}
    profile = loaded(home, **variables)
    assert [each.ca_file for each in sides(profile)] == ["/1.pem", "/2.pem"]
    shown = effective(profile, {})["primary.ca_file"]
    assert shown == Setting("/1.pem", "SBPAIR_PRIMARY_CA_FILE", Origin.ENVIRONMENT)
    assert effective(profile, {})["primary.name"] == Setting("contoso", "primary.namespace", Origin.DERIVED)
    assert unknown_variables(Flags(), variables) == {}


def sides(profile: Profile) -> tuple[Endpoint, Endpoint]:
    return profile.pair.primary, profile.pair.secondary


def test_a_proxy_with_its_password_comes_from_a_variable(home: Path) -> None:
    write(home, FILE.replace('endpoint = "10.0.0.4:5671"', 'proxy_env = "P"'))
    profile = loaded(home, P=PROXY)
    proxy = profile.pair.secondary.proxy
    assert (proxy.address, proxy.user, proxy.password, proxy.source) == (
        "proxy.example.com:3128",
        "me",
        "nobody/may@see",
        "P",
    )
    assert profile.pair.secondary.transport is Transport.WEBSOCKET
    shown = effective(profile, {"https_proxy": "http://me:nobody@other:1", "no_proxy": ".example.com"})
    found = {key: (each.value, each.source) for key, each in shown.items() if key.endswith(("proxy", "transport"))}
    assert found == {
        "primary.proxy": ("http://***@other:1", "https_proxy"),
        "primary.transport": ("tcp", ""),
        "secondary.proxy": ("http://***@proxy.example.com:3128", "P"),
        "secondary.transport": ("websocket", "secondary.proxy"),
    }
    assert "nobody" not in repr(profile) + repr(shown)


def test_an_emulator_on_this_or_another_machine_needs_no_tls(home: Path) -> None:
    write(home, FILE.replace("10.0.0.4:5671", "127.0.0.1:5672") + "tls = false\n")
    assert not loaded(home).pair.secondary.tls
    elsewhere = EMULATORS["SBPAIR_PRIMARY_CONNECTION_STRING"].replace("127.0.0.1", "emulator")
    assert loaded(home, **{**EMULATORS, "SBPAIR_PRIMARY_CONNECTION_STRING": elsewhere}).pair.primary.host == "emulator"


def test_an_emulator_keeps_its_port_for_websockets(home: Path) -> None:
    pair = loaded(home, Flags(transport="websocket"), **EMULATORS).pair
    assert (pair.primary.amqp_address, pair.primary.tls) == ("127.0.0.1:5672", False)


SOCKETS = "Endpoint=sb://a.example;SharedAccessKeyName=Root;SharedAccessKey=k;TransportType=AmqpWebSockets"


@pytest.mark.parametrize(
    ("flag", "variable", "in_string", "in_file", "transport", "source"),
    [
        ("tcp", "websocket", True, "websocket", "tcp", "--transport"),
        (None, "tcp", True, "websocket", "tcp", "SBPAIR_PRIMARY_TRANSPORT"),
        (None, None, True, "tcp", "websocket", "KEYED"),
        (None, None, False, "websocket", "websocket", "config.toml:3 [pairs.orders.primary]"),
        (None, None, True, None, "websocket", "KEYED"),
        (None, None, False, None, "tcp", ""),
    ],
)
def test_the_transport_of_a_connection_string_wins_over_the_file_alone(
    home: Path,
    flag: str | None,
    variable: str | None,
    in_string: bool,
    in_file: str | None,
    transport: str,
    source: str,
) -> None:
    text = SOCKETS if in_string else SOCKETS.rpartition(";")[0]
    environ = {"KEYED": text} | ({} if variable is None else {"SBPAIR_PRIMARY_TRANSPORT": variable})
    own = f'transport = "{in_file}"' if in_file else ""
    file = home / "config.toml"
    file.write_text(
        f'[pairs.orders.primary]\nconnection_string_env = "KEYED"\n{own}\n[pairs.orders.secondary]\nnamespace = "b"\n'
    )
    profile = load(Flags(config=file, transport=flag), environ)
    assert profile.pair.primary.transport == transport
    shown = effective(profile, environ)["primary.transport"]
    assert (shown.value, shown.source.endswith(source)) == (transport, True)


def test_an_entity_path_is_that_of_the_key(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = loaded(
        home, **EMULATORS | {"SBPAIR_PRIMARY_CONNECTION_STRING": f"{connection_string('a:1')};EntityPath=q"}
    )
    assert profile.pair.primary.credential == SasKey("Root", KEY)
    assert profile.pair.primary.entity == "q"
    assert not caplog.records


def test_all_mistakes_of_a_pair_are_errors_with_their_lines(home: Path) -> None:
    text = """[pairs.orders]
backlog_queue = 3
ping_interval = 5
[pairs.orders.secondary]
connection_string_env = "NONE"
namespace = "b"
cafile = ""
tls = "no"
"""
    file = f"{home}/.config/sbpair/config.toml"
    error = refused(home, text)
    assert [each.message for each in (error, *error.others)] == [
        f"{file}:2 [pairs.orders]: unknown key 'backlog_queue'",
        f"{file}:3 [pairs.orders]: ping_interval must be text in quotes",
        f"{file}:7 [pairs.orders.secondary]: unknown key 'cafile'",
        f"{file}:8 [pairs.orders.secondary]: tls must be true or false",
        f"{file}:5 [pairs.orders.secondary] has both namespace and connection_string_env",
        f"{file}:5 [pairs.orders.secondary]: the variable NONE is not set",
    ]
    sides = [f"[pairs.p.{side}]\nnamespace = 'a b'\n" for side in ("primary", "secondary")]
    error = refused(home, "".join(sides))
    lines = [f"{file}:{line} [pairs.p" for line in (2, 4)]
    assert [each.message.partition(".p")[0] + ".p" for each in (error, *error.others)] == lines
