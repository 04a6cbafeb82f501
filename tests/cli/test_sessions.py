"""Sessions with the command line on an emulated pair: `sessions/` has each line with all that it prints.

A session begins with `== its title`. Lines of `%` prepare the pair or show what is left there; see `Session`. Below a
line of `$`, which may begin with variables, is what it prints, stderr after `! `, and the exit code if it is not 0;
`| a b.c` shows these keys of the JSON document alone, `| .` all of it, and `| -` its JSON Lines, with sorted keys.
`< FILE` is stdin, and `> FILE` takes what is printed.
`$ printed` is the first command that a line has printed, `$ printed:2` the second. Lines of `$` that follow each other
print the same. Ids of runs, times and durations are replaced.
`python tests/cli/test_golden.py` writes them again.
"""

import asyncio
import base64
import gc
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, closing
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from unittest import mock

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Char, Int, Symbol
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.backlog import Aliases, write_aliases
from sbpair.config import load
from sbpair.config.setting import Flags
from sbpair.replay.archive import Archive
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import RunEntry
from sbpair.syphon.run_request import RunTimings
from sbpair.testing import EmulatorThread, QueueDescription, SubscriptionDescription
from tests.cli.relay_world import RelayWorld
from tests.kit import replay_archives
from tests.kit.command import Here, captured, environment, untimed
from tests.kit.printed import commands_in
from tests.kit.sas import sign
from tests.kit.stranded import put

FOLDER = Path(__file__).parent / "sessions"
SECRET = "a-key-that-nobody-may-see"
CONFIG = """
[pairs.default]
backlog_queues = 1
[namespaces.archive]
connection_string_env = "ARCHIVE"
name = "cellar"
"""
VARYING = (
    (r"(?<=stranded since )[^()]*\([^()]*\)", "WHEN"),
    (r"(?<=2999-01-01 00:00Z, in )\d+d", "AGES"),
    (r"\d{6}-\d{6}-[0-9a-z]{4}", "RUN"),
    (r"TrackingId:.*?, Timestamp:[\d:T-]+", "TRACKING"),
    (r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00| UTC)", "TIME"),
    (r"(?<=last used on )20\d\d-\d\d-\d\d", "DAY"),
    (r"(?<=enqueued TIME) to TIME", ""),  # of messages that were put at once
    (r"(?<=\.jsonl, )[\d.]+ K?B", "SIZE"),  # a time without milliseconds is shorter
    (r'(?<="kept": \{"bytes": )\d+', "N"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"\b\d+(\.\d+)? ?s\b(?! of)", "Ns"),
    (r"billable operations: \d+ \(.*\)", "billable operations: N"),  # empty receives depend on the machine
    (r'((?<=seconds": )|(?<="empty_receives": )|(?<="management_calls": )|(?<="by_sbpair": ))\d+(\.\d+)?', "N"),
    (r"(?<=of run r\d, )[\d.]+ K?B", "SIZE"),  # of files, which depends on the version of pyarrow
    (r"(?<=sbpair-drill-)[0-9a-f]{12}|\b[0-9a-f]{32}\b", "TAG"),
    (r"(?<=segments/)\d{8}T\d{6}\.\d{3}Z", "TIME"),
    (r"(?<=parquet is broken: ).*", "WHY"),
)
PATIENT = "(patient)"
"""The end of a title whose runs wait as long as they do elsewhere, until they believe that a queue is empty."""

PROGRESS = re.compile(r"! \d+ sent, ~?\d+ left")
"""Progress of a run that lasts, which depends on the machine."""

Runs = Callable[[list[str], dict[str, str]], tuple[int, str, str]]


class Session:
    """A pair of `contoso` and `contoso-dr`, at which the lines of a session are executed in turn."""

    def __init__(self, thread: EmulatorThread, home: Path, run: Runs) -> None:
        self.thread, self._home, self._run = thread, home, run
        self._namespaces = dict(zip(("primary", "secondary"), thread.emulator.namespaces.values(), strict=True))
        (home / "config.toml").write_text(CONFIG)
        archive = self._namespaces["secondary"].connection_string
        self._environ = environment(thread.emulator, NO_COLOR="1", SBPAIR_CONFIG="config.toml", ARCHIVE=archive)
        self._environ["XDG_STATE_HOME"] = str(home)
        self._printed = list[str]()
        self._relay: RelayWorld | None = None
        self._listening = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._listening.close()

    def answer(self, line: str) -> str:
        """Execute a line; return what it prints."""
        words = shlex.split(line.removeprefix("% ").removeprefix("$ ").replace("\\x", "\x1b"))
        if line.startswith("% "):
            if words[0] == "listen":  # it waits for the namespaces
                self._listen(*words[1:])
                return ""
            return _steady(self.thread.do(lambda: getattr(self, f"_{words[0]}")(*words[1:])) or "")
        keys: list[str] = []
        if "|" in words:
            words, keys = words[: words.index("|")], words[words.index("|") + 1 :]
            words += ["-o", "jsonl" if keys == ["-"] else "json"]
        file = self._home / words.pop() if "<" in words else Path(os.devnull)
        kept = self._home / words.pop() if ">" in words else None
        if (at := next((at for at, word in enumerate(words) if word.startswith("printed")), None)) is not None:
            number = int(words[at].partition(":")[2] or 1)
            words[at : at + 1] = ["sbpair", *shlex.split(self._printed[number - 1])]
        at = words.index("sbpair")
        environ = self._environ | dict(each.split("=", 1) for each in words[:at])
        with file.open() as stdin, mock.patch("sys.stdin", stdin):
            code, out, err = self._run([word for word in words[at + 1 :] if word not in ("<", ">")], environ)
        if kept is not None:
            kept.write_text(out)
            out = ""
        is_one = out.partition("\n")[0].endswith(("{", "["))
        for document in [out] if is_one else [each for each in out.splitlines() if each[:1] == "{"]:
            json.loads(document)  # by its schema
        self._printed = [*commands_in(err)] or [*commands_in(out)] or self._printed
        if keys in (["."], ["-"]):
            lines = [json.loads(each) for each in out.splitlines()] if keys == ["-"] else [json.loads(out or "{}")]
            texts = [[f'"{key}": {json.dumps(each[key], sort_keys=True)}' for key in sorted(each)] for each in lines]
            out = "".join("\n".join(each) + "\n" if keys == ["."] else ", ".join(each) + "\n" for each in texts if each)
        elif keys and out:
            out = " ".join(f"{key}={_found(json.loads(out), key.split('.'))}" for key in keys) + "\n"
        said = "".join(f"! {each}\n" for each in untimed(err).splitlines())
        text = f"{out}{said}" + (f"exit {code}\n" if code else "")
        assert SECRET not in text
        assert "sig=" not in text
        return _steady(text.replace(str(self._home), "~"))

    def _queue(self, side: str, path: str, *terms: str) -> None:
        """Create a queue: `sessions`, `dedup`, `to=NAME` or `dead=NAME` describe it."""
        forwards = dict(each.split("=") for each in terms if "=" in each)
        description = QueueDescription(
            requires_session="sessions" in terms,
            requires_duplicate_detection="dedup" in terms,
            forward_to=forwards.get("to"),
            forward_dead_lettered_messages_to=forwards.get("dead"),
        )
        self._namespaces[side].create_queue(path, description)

    def _status(self, side: str, path: str, status: str) -> None:
        """Set the status of a queue, such as SendDisabled."""
        queue = self._entity(side, path)
        queue.update(replace(queue.description, status=status))

    def _topic(self, side: str, name: str, *subscriptions: str) -> None:
        """Create a topic; `dead=NAME` collects the dead letters of its subscriptions."""
        topic = self._namespaces[side].create_topic(name)
        dead = next((each.removeprefix("dead=") for each in subscriptions if each.startswith("dead=")), None)
        for each in subscriptions:
            if "=" not in each:
                topic.create_subscription(each, SubscriptionDescription(forward_dead_lettered_messages_to=dead))

    def _put(self, side: str, path: str, *ids: str) -> None:
        """Store messages, also `m1..m9`.

        `to=NAME`, `of=SESSION` and `ttl=MS` write aliases, `session=ID` a session, `odd` what the SDK cannot decode,
        `body=BASE64` and `encoding=NAME` a body.
        """
        ids = tuple(each for word in ids for each in _spread(word))
        named = dict(each.split("=", 1) for each in ids if "=" in each)
        ttl = int(named["ttl"]) if "ttl" in named else None
        entity = self._namespaces[side].find_topic(path.split("/subscriptions/", maxsplit=1)[0]) or self._entity(
            side, path
        )
        for each in (word for word in ids if "=" not in word and word != "odd"):
            own: dict[str, Any] = {"number": Int(int(re.sub(r"\D", "", each) or 0))}
            own |= write_aliases(Aliases(named["to"], named.get("of"), ttl)) if "to" in named else {}
            own |= {"odd": Char("\u20ac")} if "odd" in ids else {}
            encoding = Symbol(named["encoding"]) if "encoding" in named else None
            properties = Properties(
                message_id=each, subject=f"s{each[1:]}", group_id=named.get("session"), content_encoding=encoding
            )
            body = base64.b64decode(named["body"]) if "body" in named else f"body of {each}".encode()
            sections = Sections(
                properties=properties.encode(),
                application_properties=encode_map(APPLICATION_PROPERTIES, own),
                body=data_body(body),
            )
            put(entity, sections.join())

    def _bury(self, side: str, path: str, reason: str, *ids: str) -> None:
        """Store messages, and dead-letter them; the reason `-` is none."""
        self._put(side, path, *ids)
        messages = self._entity(side, path).messages
        session = next((each.removeprefix("session=") for each in ids if each.startswith("session=")), None)
        held = messages if session is None else messages.accept(session)
        for locked in held.receive(sum("=" not in each for word in ids for each in _spread(word))):
            messages.dead_letter(locked.lock_token, None if reason == "-" else reason, "why")
        if session is not None:
            held.close()

    def _defer(self, side: str, path: str, number: str) -> None:
        """Defer the message of a sequence number, and give the others back."""
        messages = self._entity(side, path).messages
        for each in messages.receive(99):
            settle = messages.defer if each.sequence_number == int(number) else messages.release
            settle(each.lock_token)

    def _poison(self, side: str, path: str, poison: str) -> None:
        """Complete what arrives in a queue from now on, but dead-letter one message."""
        messages, loop = self._entity(side, path).messages, asyncio.get_running_loop()
        enqueue = messages.enqueue

        def settle() -> None:
            for each in messages.receive(100):
                if each.sections.read_properties().message_id == poison:
                    messages.dead_letter(each.lock_token, "Poison", "it is bad")
                else:
                    messages.complete(each.lock_token)

        def consumed(*arguments: Any, **keywords: Any) -> Any:
            loop.call_soon(settle)
            return enqueue(*arguments, **keywords)

        messages.enqueue = consumed

    def _key(self, side: str, kind: str = "") -> None:
        """Give the commands a key of a namespace that is `wrong` or `expired`, or has the claim `listen` or `send`."""
        namespace, variable = self._namespaces[side], f"SBPAIR_{side.upper()}_CONNECTION_STRING"
        endpoint = namespace.connection_string.partition(";")[0]
        rights = frozenset(each for each in AccessRight if each == kind.capitalize())
        rule = AuthorizationRule(f"of-{kind}", SECRET, SECRET, rights)
        keyed = f"SharedAccessKeyName=of-{kind};SharedAccessKey={SECRET}"
        if rights:
            namespace.keys = (*namespace.keys, rule)
        if kind == "expired":
            keyed = f"SharedAccessSignature={sign(rule, endpoint.replace('Endpoint=sb', 'https'), 1_600_000_000)}"
        given = f"{endpoint};{keyed};UseDevelopmentEmulator=true" if kind else namespace.connection_string
        self._environ[variable] = given

    def _lock(self, side: str, path: str, number: str) -> None:
        assert len(self._entity(side, path).messages.receive(int(number))) == int(number)

    def _session(self, side: str, path: str, session_id: str, state: str = "") -> None:
        """Hold a session, or give it a state, whose form `binary` is no text."""
        held = self._entity(side, path).messages.accept(session_id)
        if state:
            held.set_state(b"\xff\x00" if state == "binary" else state.encode())
            held.close()

    def _file(self, name: str, *texts: str) -> None:
        """Write a file; a number among its texts is a line of that length."""
        text = "".join("x" * int(each) if each.isdecimal() else each for each in texts)
        (self._home / name).parent.mkdir(parents=True, exist_ok=True)
        (self._home / name).write_text(text.replace("\\n", "\n"))

    def _show(self, name: str, *titles: str) -> str:
        """Show a file, these sections of a document, or the names of the files in a directory; `-` is its head."""
        path = self._home / name
        if path.is_dir():
            return " ".join(sorted(each.name for each in path.rglob("*") if each.is_file())) + "\n"
        text = path.read_text()
        sections = {part.partition("\n")[0]: f"## {part}" for part in text.split("\n## ")[1:]}
        sections["-"] = text.partition("\n## ")[0]
        return "\n".join(sections[each] for each in titles) if titles else text

    def _java(self, version: str) -> None:
        replay_archives.java_in(self._home / "java", version)

    def _archive(self, run: str, *parts: str) -> None:
        """Create a run of a replay in the directory `archive`, or change it.

        A message is `stored`, and has outcomes such as `sent`; `held` is one in doubt. `direct` is a mode. `-NAME`
        removes a file or directory, `NAME=JSON` writes a file. `cut` breaks a segment, `foreign` and `shards` bring in
        one, and a ledger, of other runs.
        """
        replay_archives.change(Archive("archive", run), parts)

    def _crashed(self, run: str, command: str, receipt: str, mode: str = "archive", keep: str = "") -> None:
        """Record a run that has crashed, with its last receipt, in the state directory of the pair."""
        profile = load(Flags(), self._environ)
        with (
            RunDatabase(profile.state_directory, profile.pair.ends) as state,
            closing(RunEntry(state, command, run_id=run)) as entry,
        ):
            entry.describe({"mode": mode} | ({"keep": keep, "source": "orders"} if keep else {}))
            entry.record(json.loads(receipt.replace("~", str(self._home))))

    def _listen(self, status: str = "", side: str = "") -> None:
        """End what listens on the relay `default`, which is created first; answer with a status, on a side or both."""
        if self._relay is None:
            self._relay = RelayWorld(self.thread, self._run)
            self._environ |= {name: value for name, value in self._relay.environ.items() if "RELAY" in name}
        self._listening.close()
        if status:
            self._listening.enter_context(self._relay.listener(int(status), side or None))

    def _down(self, namespace: str) -> None:
        self.thread.emulator.faults.namespace_down(namespace)

    def _refuse(self, namespace: str) -> None:
        """Refuse requests to manage a namespace."""
        self.thread.emulator.faults.refuse_requests(namespace, 401)

    def _advance(self, seconds: str) -> None:
        """Let time pass in the namespaces."""
        self.thread.emulator.advance(int(seconds) * 1_000)

    def _up(self) -> None:
        self.thread.emulator.faults.end_all()

    def _take(self, side: str, path: str) -> str:
        """Lock all messages and dead letters that nobody has locked, and show how many those are."""
        queue = self._entity(side, path)
        return f"{path}: {len(queue.messages.receive(99))} + {len(queue.dead_letters.receive(99))}\n"

    def _left(self, side: str, path: str, order: str = "") -> str:
        """Show the messages of an entity, and its dead letters after `+`; those received before with their number.

        `sorted` shows them in the order of their ids.
        """
        queue = self._entity(side, path)
        live, dead = (" ".join(_names(each.peek(0, 99), order)) for each in (queue.messages, queue.dead_letters))
        return f"{path}: {live or '-'} + {dead or '-'}\n"

    def _queues(self, side: str) -> str:
        return " ".join(sorted(each.path for each in self._namespaces[side].queues())) + "\n"

    def _entity(self, side: str, path: str) -> Any:
        topic, found, subscription = path.partition("/subscriptions/")
        namespace = self._namespaces[side]
        return namespace.topic(topic).subscription(subscription) if found else namespace.queue(path)


def _spread(word: str) -> list[str]:
    """Return the ids of `m1..m9`, or the word."""
    found = re.fullmatch(r"([a-z]+)(\d+)\.\.\1(\d+)", word)
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)] if found else [word]


def _names(messages: list[Any], order: str) -> list[str]:
    shown = [
        f"{each.sections.read_properties().message_id}{f'({each.delivery_count})' if each.delivery_count else ''}"
        for each in messages
    ]
    return sorted(shown) if order else shown


def _found(document: Any, keys: list[str]) -> str:
    for at, key in enumerate(keys):
        if isinstance(document, list):
            return "[" + ", ".join(_found(each, keys[at:]) for each in document) + "]"
        document = document[key]
    return json.dumps(document)


def _steady(text: str) -> str:
    """Replace, or leave out, what differs from run to run; of such a line, the spaces, too."""
    lines = []
    for line in (each for each in text.splitlines() if not PROGRESS.match(each)):
        steady = line.rstrip()
        for pattern, name in VARYING:
            steady = re.sub(pattern, name, steady)
        lines.append(steady if steady == line.rstrip() else re.sub("  +", "  ", steady))
    return "".join(f"{each}\n" for each in lines)


def sessions() -> Iterator[tuple[str, str]]:
    """Yield the title of each session, after its file's name, and its text."""
    for file in sorted(FOLDER.glob("*.txt")):
        for text in file.read_text().split("== ")[1:]:
            title, _, body = text.partition("\n")
            yield f"{file.stem}: {title}", body


def emulated(title: str) -> EmulatorThread:
    """Return the pair of a session: `(premium)` after its title gives the secondary two partitions of Premium."""
    tier = ("premium", 2) if title.endswith("(premium)") else ()
    return EmulatorThread((("contoso", 0), ("contoso-dr", 0, *tier)))


def replayed(body: str, session: Session) -> str:
    """Return the text of a session with what its lines print now."""
    answers: list[tuple[str, str]] = []
    for line in (each for each in body.splitlines() if each.startswith(("% ", "$ "))):
        answer = session.answer(line) or "(nothing)\n" * line.startswith("$ ")
        before = answers[-1] if answers else ("", "")
        if answer and before[0].startswith("$ ") and before[1] == answer:
            answers[-1] = (before[0], "")
        answers.append((line, answer))
    return "".join(f"{line}\n{answer}" for line, answer in answers)


def parameters() -> Iterator[Any]:
    """Yield the sessions as parameters. The SDK leaves a connection open if its namespace goes down."""
    leaving = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    for title, body in sessions():
        yield pytest.param(title, body, id=title, marks=leaving if "\n% down " in body else ())


@pytest.mark.parametrize(("title", "body"), list(parameters()))
def test_a_session_prints_what_it_did(
    title: str,
    body: str,
    here: Here,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    if not title.endswith(PATIENT):
        request.getfixturevalue("impatient")

    def run(words: list[str], environ: dict[str, str]) -> tuple[int, str, str]:
        return here(*words, **environ)

    with emulated(title) as thread, Session(thread, tmp_path, run) as session:
        now = replayed(body, session)
    # pytest cuts its own comparison of such texts short.
    changed = list(unified_diff(body.splitlines(), now.splitlines(), "agreed", "now", lineterm="", n=1))
    if changed:
        pytest.fail("\n".join(["if it should change: python tests/cli/test_golden.py", *changed]), pytrace=False)
    gc.collect()


def regenerate() -> None:
    """Write what each session prints now."""
    hasty = RunTimings(empty_wait_seconds=0.03, count_wait_seconds=(0.01, 0.02, 0.3))

    texts: dict[str, str] = {}
    for title, body in sessions():
        file, _, name = title.partition(": ")
        with (
            TemporaryDirectory() as home,
            chdir(home),
            emulated(title) as thread,
            mock.patch("sbpair.syphon.runner.DEFAULT_TIMINGS", RunTimings() if title.endswith(PATIENT) else hasty),
            mock.patch("sbpair.failover.failover_send.PRIMARY_SHARE", 0.3),
            Session(thread, Path(home), captured) as session,
        ):
            texts[file] = texts.get(file, "") + f"== {name}\n{replayed(body, session)}"
    for file, text in texts.items():
        (FOLDER / f"{file}.txt").write_text(text)
