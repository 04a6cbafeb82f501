"""Wrong options and arguments: an error and a hint, before any connection."""

from __future__ import annotations

import shlex

import pytest

from sbpair.__main__ import run
from tests.cli.test_bad_input import emulated

LONG = "a" * 261
WRONG = [
    ("send", "Missing argument 'QUEUE|TOPIC'"),
    ("send a//b", "'a//b' is not a valid path of a queue or topic"),
    ("send orders no-such-file", "no-such-file does not exist"),
    ("send orders /", "/ cannot be read: it is a directory"),
    ("send orders --rate 0", "--rate must be greater than 0"),
    ("send orders --skip -1", "Invalid value for '--skip'"),
    ("send orders --timeout soon", "--timeout: expected a duration such as 90s, got 'soon'"),
    ("send orders --timeout 0", "--timeout is 0, and must be from 1 s to 3600 s"),
    ("send orders --failover-interval 2h", "--failover-interval is 2h, and must be from 0 s to 3600 s"),
    ("send orders --on-failure hope", "Invalid value for '--on-failure'"),
    ("ping", "Missing argument 'QUEUE|TOPIC…'"),
    ("ping a//b", "'a//b' is not a valid path of a queue or topic"),
    ("ping orders --timeout 0", "--timeout is 0, and must be from 1 s to 600 s"),
    ("drill --count 0", "--count is 0, and must be at least 1"),
    ("drill --yes", "--yes goes with --against only"),
    ("drill --config f", "--config goes with --against only"),
    ("drill --against default --messages 5", "--messages and --against exclude each other"),
    ("drill --against nobody", "--against: pair 'nobody' does not exist"),
    ("drill --ping-interval 0", "--ping-interval is 0, and must be from 1 s to 60 s"),
    ("drill --failover-interval 2m", "--failover-interval is 2m, and must be from 0 s to 60 s"),
    ("drill --rate 0", "Invalid value for '--rate'"),
    ("status --outbox nowhere.db", "outbox nowhere.db does not exist"),
    ("send orders --outbox no/dir/o.db /dev/null", "'no/dir/o.db' cannot be an outbox"),
    ("status --timeout x", "--timeout: expected a duration such as 90s, got 'x'"),
    ("receive orders --max 0", "--max is 0"),
    ("receive orders --max -3", "--max is -3"),
    ("receive orders --max many", "Invalid value for '--max': expected a whole number"),
    ("receive orders --wait soon", "--wait: expected a duration such as 90s, got 'soon'"),
    ("receive orders --wait 0", "--wait must be greater than 0"),
    ("receive orders --wait -5s", "--wait: expected a duration such as 90s, got '-5s'"),
    ("receive orders --key id", "--key goes with --dedup only"),
    ("receive orders --store x.db", "--store goes with --dedup only"),
    ("receive orders --window 1h", "--window goes with --dedup only"),
    ("receive orders --dedup --key body", "--key: unknown deduplication key 'body'"),
    ("receive orders --dedup --key ''", "--key: unknown deduplication key ''"),
    ("receive orders --dedup --key property:", "--key: unknown deduplication key 'property:'"),
    ("receive orders --dedup --window 0", "--window must be greater than 0"),
    ("receive orders --dedup --window long", "--window: expected a duration such as 90s, got 'long'"),
    (
        "receive orders --remove --yes --dedup --store /no/such/place/keys.db",
        "/no/such/place/keys.db cannot be a file: No such file or directory",
    ),
    ("receive orders --remove --yes --dedup --store /", "/ cannot be a file: Is a directory"),
    ("receive orders --dedup --store x.db", "--store goes with --remove only"),
    ("receive orders --dedup --window 1h", "--window goes with --remove only"),
    ("receive orders --wait 1s", "--wait goes with --remove only"),
    ("receive orders --yes", "--yes goes with --remove only"),
    ("receive orders --peek", "No such option: --peek"),
    ("peek", "Missing argument 'QUEUE'"),
    ("peek a//b", "'a//b' is not a valid path of a queue or topic"),
    ("peek orders --max -5", "--max is -5, and must be at least 1"),
    ("peek orders --from -1", "--from is -1, which is not a sequence number"),
    (f"peek orders --from {2**63}", f"--from is {2**63}, which is not a sequence number"),
    ("peek orders --side third", "Invalid value for '--side'"),
    ("deadletters", "Missing command"),
    ("deadletters list --max 0", "--max is 0, and must be at least 1"),
    ("deadletters show --max 0", "--max is 0, and must be at least 1"),
    ("deadletters show orders", "Got unexpected extra argument"),
    (
        "receive orders --subscription 'no spaces'",
        "'orders/Subscriptions/no spaces' is not a valid path of a queue or topic",
    ),
    (
        "receive orders --output xml",
        "Invalid value for '--output' / '-o': 'xml' is not one of 'table', 'json', 'jsonl'",
    ),
    ("receive orders more", "Got unexpected extra argument(s) (more)"),
    ("audit --fail-on mising", "--fail-on: 'mising' is not a finding"),
    ("audit --fail-on ''", "--fail-on names no finding"),
    ("audit --fail-on none,drift", "--fail-on none cannot be combined with others"),
    ("audit --idle 0", "--idle must be greater than 0"),
    ("audit --idle long", "--idle: expected a duration such as 90s, got 'long'"),
    ("audit --idle P1Y", "--idle: expected a duration such as 90s, got 'P1Y'"),
    ("audit --idle -30d", "--idle: expected a duration such as 90s, got '-30d'"),
    ("audit --sample 2h", "--sample is 2h, and must be from 0 s to 3600 s"),
    ("audit --sample x", "--sample: expected a duration such as 90s, got 'x'"),
    ("audit --peek -1", "Invalid value for '--peek': it must be at least 0"),
    ("audit --peek many", "Invalid value for '--peek'"),
    ("audit --peek 10000000", "Invalid value for '--peek': it must be at most 1000000"),
    ("doctor --include-idle-test", "--include-idle-test goes with --live only"),
    ("doctor --yes", "--yes goes with --live only"),
    ("doctor --timeout soon", "--timeout: expected a duration such as 90s, got 'soon'"),
    ("doctor --timeout 0", "--timeout must be greater than 0"),
    ("doctor --timeout 1h", "--timeout is 1h, and must be from 0 s to 600 s"),
    ("doctor --timeout -1s", "--timeout: expected a duration such as 90s, got '-1s'"),
    ("doctor --queue", "Option '--queue' requires an argument"),
    ("doctor queue", "Got unexpected extra argument"),
    ("doctor --output xml", "Invalid value for '--output'"),
    ("partition", "Missing command"),
    ("partition lst", "No such command 'lst'. Did you mean 'list'?"),
    ("partition queue", "Missing argument 'NAME'"),
    ("partition queue orders", "Missing option '--size-gb'"),
    ("partition queue orders --size-gb 5GB", "Invalid value for '--size-gb': expected a whole number"),
    ("partition queue orders --size-gb 2.5", "Invalid value for '--size-gb': expected a whole number"),
    ("partition queue orders --size-gb 0", "a queue or topic cannot have 0 GB"),
    ("partition queue orders --size-gb 81920", "a queue or topic cannot have 81920 GB"),
    ("partition queue 'a b' --size-gb 5", "'a b' is not a valid path of a queue or topic"),
    (f"partition queue {LONG} --size-gb 5", f"the path {LONG[:40]}… has 261 characters; Service Bus allows 260"),
    ("partition queue orders --size-gb 5 --duplicate-detection 8d", "duplicates cannot be detected for 8d"),
    ("partition queue orders --size-gb 5 --duplicate-detection soon", "expected a duration such as 90s, got 'soon'"),
    ("partition queue orders --size-gb 5 --forward-to orders", "orders cannot forward to itself"),
    (
        "partition queue orders --size-gb 5 --forward-to a --sessions",
        "a queue that requires sessions cannot forward its messages",
    ),
    ("partition queue orders --size-gb 5 --side primary --both", "--side and --both exclude each other"),
    ("partition queue orders --size-gb 5 --side third", "Invalid value for '--side'"),
    ("partition queue orders --size-gb 5 --via arm", "--via arm needs --subscription"),
    ("partition list --resource-group g", "--resource-group is for Azure Resource Manager"),
    ("partition topic news --size-gb 5 --sessions", "No such option: --sessions"),
    ("partition topic news --size-gb 5 --forward-to a", "No such option: --forward-to"),
    ("partition list --both", "No such option: --both"),
    ("replay plan --destination 'no such'", "'no such' is not a valid path of a queue or topic"),
    ("replay plan --destination ''", "'' is not a valid path of a queue or topic"),
    ("replay plan --rate 0", "--rate must be greater than 0"),
    ("replay plan --where true", "No such option: --where"),
    ("replay plan --dedup guess", "Invalid value for '--dedup'"),
    ("config --count 0", "pair 'default': backlog_queues is 0, and must be at least 1"),
    ("config --pth", "No such option: --pth"),
    ("config orders", "Got unexpected extra argument(s) (orders)"),
    ("config --pair nope", "--pair: pair 'nope' does not exist"),
    ("runs", "Missing command"),
    ("runs lst", "No such command 'lst'. Did you mean 'list'?"),
    ("runs show", "Missing argument 'ID'"),
    ("runs show nope", "run 'nope' does not exist"),
    ("schema nope", "'nope' is not a schema"),
    ("help nope", "'nope' is neither a command nor a topic"),
    ("emulator --namespace =5", "--namespace '=5' is not NAME=PORT"),
    ("emulator --namespace contoso=99999", "99999 is not a port number"),
    ("emulator --namespace contoso=0,gold", "expected basic, standard or premium, got 'gold'"),
    ("emulator --ca-file x", "--ca-file is for the certificate of --tls"),
    ("provision --entities /nowhere.toml", "--entities: /nowhere.toml cannot be read: No such file or directory"),
    ("prune --count 0", "pair 'default': backlog_queues is 0, and must be at least 1"),
    ("prune now", "Got unexpected extra argument(s) (now)"),
    ("syphon --onec", "No such option: --onec"),
    ("syphon --once --rate 0", "--rate must be greater than 0"),
    ("syphon --once --credits 0", "--credits is 0, but a Standard namespace has 1000 credits a second"),
    ("syphon --once --credits much", "--credits: expected a share such as 50% or credits a second, got 'much'"),
    ("syphon --once --lease a//b", "'a//b' is not a valid path of a queue or topic"),
    ("partition queue orders --size-gb 7", "a queue or topic cannot have 7 GB"),
    ("replay rn", "No such command 'rn'. Did you mean 'run'?"),
    ("replay run", "Missing option '--archive'"),
    ("replay run --archive", "Option '--archive' requires an argument"),
    ("replay resume", "Missing argument 'RUN'"),
    *(
        (f"replay {action} abc --archive /nowhere/archive", "there is no run abc in /nowhere/archive")
        for action in ("verify", "status", "stop")
    ),
    ("send orders --format xml", "Invalid value for '--format': 'xml' is not one of 'lines', 'jsonl'"),
    ("send orders --rate many", "--rate: expected a rate such as 500/s, got 'many'"),
    ("status a//b", "'a//b' is not a valid path of a queue or topic"),
    ("receive a//b", "'a//b' is not a valid path of a queue or topic"),
    ("audit --via rest", "Invalid value for '--via': 'rest' is not one of 'atom', 'arm'"),
    ("audit --subscription x", "--subscription is for Azure Resource Manager"),
]


@pytest.mark.parametrize(("words", "what"), WRONG, ids=[words[:60] for words, _ in WRONG])
def test_wrong_options_are_refused_before_connecting(
    words: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, port in (("PRIMARY", 1), ("SECONDARY", 2)):
        monkeypatch.setenv(f"SBPAIR_{side}_CONNECTION_STRING", emulated(port))
        monkeypatch.setenv(f"SBPAIR_{side}_NAME", side.lower())
    assert run(shlex.split(words)) == 2
    out, err = capsys.readouterr()
    *_warnings, error, hint = err.splitlines()
    assert error.startswith(f"error: {what}")
    assert hint.startswith("hint: ")
    assert out == ""
