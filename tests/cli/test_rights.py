"""Every command with exactly the rights that its help names, as each kind of credential has them, and with others."""

import asyncio
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sbpair.amqp_client.client import connect
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.cli.page.pair_source import PairSource
from sbpair.config import load
from sbpair.config.setting import Flags
from sbpair.emulator.bearer_tokens import AssignedRole
from sbpair.errors import AccessError
from sbpair.gateway.gateway import Gateway, GatewayOptions
from sbpair.model.pair import Pair, SasKey
from sbpair.testing import EmulatorOptions, EmulatorThread
from tests.cli.relay_world import PATHS
from tests.cli.test_sessions import SECRET, Session
from tests.kit.command import captured
from tests.kit.gateway_key import KEY, RULE
from tests.kit.sas import sign

BACKLOG = "contoso/x-servicebus-transfer/0"
LISTEN, SEND, BOTH, MANAGE = "Listen", "Send", "Listen Send", "Listen Send Manage"
ANY = "Listen or Send"
PRIMARY, BACKLOG_READ = {"primary": ("orders", LISTEN)}, {"secondary": (BACKLOG, LISTEN)}
NEEDED = {
    "ping orders": {"primary": ("orders", SEND)},
    "peek orders": PRIMARY,
    "peek orders --messages dead": PRIMARY,
    "receive orders": PRIMARY,
    "receive orders --remove --yes --no-keep": PRIMARY,
    "sessions grouped": {"primary": ("grouped", LISTEN)},
    "remove orders --yes --no-keep": PRIMARY,
    "send orders < line": {"primary": ("orders", SEND), "secondary": (BACKLOG, ANY)},
    "send orders --to-backlog < line": {"primary": ("orders", ANY), "secondary": (BACKLOG, SEND)},
    "move primary:orders secondary:copy": PRIMARY | {"secondary": ("copy", SEND)},
    "redrive orders": {"primary": ("orders", BOTH)},
    "redrive orders --by-reason": PRIMARY,
    "redrive --backlog": {"primary": ("orders", SEND), **BACKLOG_READ},
    "syphon --once": {"primary": ("orders", SEND), **BACKLOG_READ},
    "syphon --dry-run": {"primary": ("orders", ANY), **BACKLOG_READ},
    "status": {"primary": ("orders", ANY), **BACKLOG_READ},
    "deadletters list": BACKLOG_READ,
    "deadletters show": BACKLOG_READ,
    "replay plan": {"primary": ("orders", ANY), **BACKLOG_READ},
    "audit --sample 0 --fail-on none": {"primary": ("orders", ANY), **BACKLOG_READ},
    "doctor --destination orders": {"primary": ("orders", SEND), **BACKLOG_READ},
}
"""The entities of each side that a command needs rights on, and which."""
OF_BACKLOG = ("secondary", BACKLOG)
MANAGING = {
    "entities --side primary": ("primary", "orders", 3),
    "deadletters list --namespace archive": (*OF_BACKLOG, 0),
    "provision": (*OF_BACKLOG, 5),
    "audit --mirror --sample 0 --fail-on none": (*OF_BACKLOG, 5),
    "prune --count 1 --dry-run": (*OF_BACKLOG, 5),
    "partition list --side secondary": (*OF_BACKLOG, 5),
    "discover --connection-string-env ARCHIVE": (*OF_BACKLOG, 5),
}
"""The side that a command needs Manage on, an entity there, and the exit code with a key of that alone."""

WITHOUT = {LISTEN: SEND, SEND: LISTEN, BOTH: LISTEN}
ROLES = {"Send": "sender", "Listen": "receiver", "Manage": "owner"}
KINDS = ["namespace key", "entity key", "token", "role"]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = tmp_path_factory.mktemp("home")
    (home / "line").write_text("hello\n")
    identity = EmulatorOptions(tls=True, identity=True)
    with chdir(home), EmulatorThread(options=identity) as thread, Session(thread, home, captured) as made:
        for line in ("primary orders", "primary grouped sessions", "secondary copy", f"secondary {BACKLOG}"):
            made.answer(f"% queue {line}")
        yield made


def credential(session: Session, side: str, kind: str, entity: str, rights: str) -> dict[str, str]:
    """Return the variables of a side with exactly these rights; without any, those of a wrong credential."""
    emulator = session.thread.emulator
    at = emulator.ready.namespaces[("primary", "secondary").index(side)]
    namespace, prefix = emulator.namespaces[at.name], f"SBPAIR_{side.upper()}"
    held = frozenset(map(AccessRight, rights.split()))
    if kind == "role":
        texts = [f"{at.client_id}={ROLES[each]}@{at.name}" for each in held]
        namespace.bearers = emulator.bearers.limited(at.tenant_id, list(map(AssignedRole.parse, texts)))
        identity = {"NAMESPACE": f"{at.name}.servicebus.windows.net", "ENDPOINT": at.endpoint[5:].rstrip("/")}
        identity |= {"CA_FILE": str(emulator.ready.ca_file), "IDENTITY": "managed", "CLIENT_ID": at.client_id}
        found = {f"{prefix}_{key}": value for key, value in identity.items()}
        return found | {f"{prefix}_CONNECTION_STRING": "", **emulator.ready.identity.environment}
    rule = AuthorizationRule("some", SECRET, SECRET, held or frozenset({AccessRight.LISTEN}))
    namespace.keys = (namespace.keys[0], *([rule] if kind != "entity key" else []))
    queue = namespace.find_queue(entity)
    queue.update(replace(queue.description, authorization_rules=(rule,) if kind == "entity key" else ()))
    endpoint = namespace.connection_string.partition(";")[0]
    keyed = f"SharedAccessKeyName=some;SharedAccessKey={SECRET if held else 'wrong'}"
    if kind == "token" and held:
        keyed = f"SharedAccessSignature={sign(rule, endpoint.replace('Endpoint=sb', 'https'), int(time.time()) + 999)}"
    tail = f";EntityPath={entity}" if kind == "entity key" else ""
    return {f"{prefix}_CONNECTION_STRING": f"{endpoint};{keyed};UseDevelopmentEmulator=true{tail}"}


def answer(session: Session, line: str, kind: str, needed: dict[str, tuple[str, str]]) -> str:
    """Run a command with these rights, and a wrong credential on a side that it needs none on."""
    for each in ("put primary orders m1", "bury primary orders Bad m2"):
        session.answer(f"% {each}")
    for each in (f"put secondary {BACKLOG} m3 to=orders", f"bury secondary {BACKLOG} Bad m4 to=orders"):
        session.answer(f"% {each}")
    environ = {"XDG_STATE_HOME": str(Path(f"state of {kind}").absolute())}
    for side in ("primary", "secondary"):
        entity, rights = needed.get(side, ("orders" if side == "primary" else BACKLOG, ""))
        rights = LISTEN if rights == ANY else rights
        made = partial(credential, session, side, kind, entity, rights)
        environ |= session.thread.do(made)
    environ["ARCHIVE"] = environ["SBPAIR_SECONDARY_CONNECTION_STRING"]
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items())
    return session.answer(f"$ {words} sbpair {line}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line", NEEDED)
def test_a_command_needs_the_rights_that_its_help_names_and_no_others(line: str, kind: str, session: Session) -> None:
    needed = NEEDED[line]
    told = answer(session, line, kind, needed)
    assert not told.endswith(("exit 5\n", "exit 1\n")), told
    for side, (entity, rights) in needed.items():
        if rights != ANY:
            told = answer(session, line, kind, {**needed, side: (entity, WITHOUT[rights])})
            assert told.endswith("exit 5\n"), told


@pytest.mark.parametrize(  # a variable of the archive has no role
    ("line", "kind"),
    [(line, kind) for line in MANAGING for kind in KINDS if kind != "role" or "archive" not in line.lower()],
)
def test_a_command_needs_manage_or_answers_for_the_entity(line: str, kind: str, session: Session) -> None:
    side, entity, code = MANAGING[line]
    needed = {"primary": ("orders", MANAGE)} if "--mirror" in line else {}
    for rights, with_others in ((MANAGE, 0), (BOTH, 5)):
        wanted = code if kind == "entity key" else with_others
        told = answer(session, line, kind, {**needed, side: (entity, rights)})
        found = int(told.rpartition("\nexit ")[2]) if "\nexit " in f"\n{told}" else 0
        assert found == wanted, told
        assert code == 5 or kind != "entity key" or rights == MANAGE or "need Manage" in told, told


SEEN = {  # what the page has of both sides, with counts where it is up
    ("namespace key", MANAGE): ["up", "up"],
    ("namespace key", LISTEN): ["refused", "up"],
    ("entity key", LISTEN): ["up", "up"],
    ("entity key", SEND): ["up", "up"],
    ("token", MANAGE): ["up", "up"],
}


def pair_with(session: Session, kind: str, rights: str) -> Pair:
    environ = dict(session._environ)
    for side, entity in (("primary", "orders"), OF_BACKLOG):
        environ |= session.thread.do(partial(credential, session, side, kind, entity, rights))
    return load(Flags(), environ).pair


@pytest.mark.parametrize(("kind", "rights"), SEEN)
def test_the_page_shows_what_the_rights_allow(kind: str, rights: str, session: Session) -> None:
    found = asyncio.run(PairSource(pair_with(session, kind, rights)).read())
    assert [each.state for each in found] == SEEN[kind, rights]
    assert [each.path for each in found[0].rows if kind == "entity key"] in ([], ["orders"])


@pytest.mark.parametrize("kind", ["namespace key", "entity key", "token"])
@pytest.mark.parametrize(("link", "right"), [("sender", SEND), ("receiver", LISTEN)])
def test_a_gateway_needs_the_rights_of_its_clients(link: str, right: str, kind: str, session: Session) -> None:
    async def attach(pair: Pair) -> None:
        async with Gateway(pair, GatewayOptions(rule=RULE, port=0)) as gateway:
            own = SasKey(RULE.key_name, KEY)
            end = replace(pair.primary, port=gateway.port, credential=own, rotated=None, entity="", signed=set())
            async with connect(end) as client:
                (await getattr(client, link)("orders")).close()

    asyncio.run(attach(pair_with(session, kind, right)))
    with pytest.raises(AccessError):
        asyncio.run(attach(pair_with(session, kind, WITHOUT[right])))


@pytest.mark.parametrize(("line", "rights", "fewer"), [("send", SEND, LISTEN), ("status", MANAGE, BOTH)])
def test_a_relay_needs_the_rights_that_its_help_names(line: str, rights: str, fewer: str, session: Session) -> None:
    session.answer("% listen 200")
    for held, ending in ((rights, ""), (fewer, "exit 5\n")):
        words = []
        for side, entity in (("primary", "orders"), OF_BACKLOG):
            [found] = session.thread.do(partial(credential, session, side, "namespace key", entity, held)).values()
            path = PATHS["contoso" if side == "primary" else "contoso-dr"]
            words.append(f"SBPAIR_RELAY_{side.upper()}_CONNECTION_STRING={shlex.quote(f'{found};EntityPath={path}')}")
        told = session.answer(f"$ {' '.join(words)} sbpair relay {line} default")
        assert told.endswith(ending) if ending else "exit" not in told, told


KEYS = """
[pairs.keyed]
backlog_queues = 2
primary = {{ connection_string_env = "ORDERS", name = "contoso" }}
secondary = {{ connection_string_env = {keys}, name = "contoso-dr" }}
"""


def keyed(session: Session, variables: dict[str, str], keys: str, line: str) -> str:
    """Run a command on a pair of the file, whose secondary has these keys."""
    Path("keyed.toml").write_text(KEYS.format(keys=keys))
    given = {"SBPAIR_CONFIG": "keyed.toml", "XDG_STATE_HOME": str(Path("state of queues").absolute())}
    given |= {f"SBPAIR_{side}_{key}": "" for side in ("PRIMARY", "SECONDARY") for key in ("CONNECTION_STRING", "NAME")}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in {**given, **variables}.items())
    return session.answer(f"$ {words} sbpair {line}")


@pytest.fixture(scope="module")
def variables(session: Session) -> dict[str, str]:
    """A key of the queue `orders`, one of each of two backlog queues, and some that do not fit."""
    session.answer(f"% queue secondary {BACKLOG[:-1]}1")
    wanted = {"ORDERS": ("primary", "orders", SEND)}
    wanted |= {f"Q{index}": ("secondary", f"{BACKLOG[:-1]}{index}", LISTEN) for index in (0, 1)}

    def made(side: str, path: str, right: str) -> str:
        [found] = credential(session, side, "entity key", path, right).values()
        return found.replace(SECRET, SECRET + path[-1])  # each of its own

    found = {name: session.thread.do(partial(made, *each)) for name, each in wanted.items()}
    for side, path, right in wanted.values():
        queue = session.thread.emulator.namespaces["contoso" if side == "primary" else "contoso-dr"].find_queue(path)
        rule = AuthorizationRule("some", SECRET + path[-1], SECRET, frozenset({AccessRight(right)}))
        session.thread.do(partial(queue.update, replace(queue.description, authorization_rules=(rule,))))
    return found | {"WHOLE": found["Q0"].partition(";EntityPath")[0], "OTHER": found["ORDERS"]}


@pytest.mark.parametrize(
    "line", ["syphon --dry-run", "deadletters list", "status", "syphon --once", "redrive --backlog"]
)
def test_each_backlog_queue_may_have_a_key_of_its_own(line: str, session: Session, variables: dict[str, str]) -> None:
    for index in (0, 1):
        session.answer(f"% put secondary {BACKLOG[:-1]}{index} m{index} to=orders")
        session.answer(f"% bury secondary {BACKLOG[:-1]}{index} Bad m{index + 2} to=orders")
    told = keyed(session, variables, '["Q0", "Q1"]', line)
    assert not told.endswith(("exit 5\n", "exit 1\n")), told
    if "--once" in line or "redrive" in line:
        assert "Unauthorized" not in told, told
        gone = session.thread.emulator.namespaces["contoso-dr"].find_queue(f"{BACKLOG[:-1]}1").counts()
        assert (gone.dead_letter if "redrive" in line else gone.active) == 0, told


@pytest.mark.parametrize("line", ["status", "audit --fail-on none", "deadletters list", "entities --side secondary"])
def test_the_key_of_one_backlog_queue_answers_for_that_one(
    line: str, session: Session, variables: dict[str, str]
) -> None:
    session.answer(f"% bury secondary {BACKLOG} Bad m2 to=orders")
    told = keyed(session, variables, '["Q0"]', line)
    assert not told.endswith(("exit 5\n", "exit 1\n")), told
    assert BACKLOG in told
    assert re.search("need Manage|the key is for|without a key", told), told


@pytest.mark.parametrize(
    ("keys", "line", "told"),
    [
        ('["Q0", "WHOLE"]', "status", "WHOLE: the connection string has no EntityPath, and is one of several"),
        ('["Q0", "OTHER"]', "status", "OTHER: the connection string is of"),
        ('["Q0", "Q1", "Q0"]', "status", "Q0: the connection string has the EntityPath of Q0"),
        ('["Q0", "UNSET"]', "status", "the variable UNSET is not set"),
        ('["Q0", 5]', "status", "must be the name of an environment variable"),
        ("[]", "status", "must be the name of an environment variable"),
        ('["Q0", "Q 1"]', "status", "must be the name of an environment variable"),
        ('["Q0", ["Q1"]]', "status", "must be the name of an environment variable"),
        ('["Q0", "Q1"]', "service print systemd", "has keys of 2 entities"),
        ('["Q0", "Q1"]', "replay run --archive archive", "has keys of 2 entities"),
    ],
)
def test_keys_that_do_not_fit_each_other_are_refused(
    keys: str, line: str, told: str, session: Session, variables: dict[str, str]
) -> None:
    found = keyed(session, variables, keys, line)
    assert told in found
    assert found.endswith("exit 2\n")
    assert "hint: " in found
