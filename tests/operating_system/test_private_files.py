"""Files and directories that only their user can read, whatever the umask."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from sbpair.operating_system import files
from tests.kit.users import GROUP, USER, make_directory, open_path

__all__ = ["open_path"]  # fixtures

WRITE = """
import json, os, sys, tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from sbpair.config.file import create_file
from sbpair.emulator.storage.data_file import open_file
from sbpair.amqp_server.tls import tls_for
from sbpair.failover.outbox import Outbox
from sbpair.operating_system import files
from sbpair.replay.archive import Archive
from sbpair.replication.keys import KeyStatus, KeyStore, Window
from sbpair.move.kept_file import KeptFile
from sbpair.runs.database import RunDatabase
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.runs.run_log import RunEntry
from tests.runs.states import PAIR


def write(root):
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(hold_machine_leases(PAIR.ends, root / "state" / "orders", "r"))
        RunEntry(enter(RunDatabase(root / "state" / "orders", PAIR.ends)), "syphon")
        files.make_directories(root / "own" / "folder")
        enter(closing(Outbox(root / "own" / "folder" / "outbox.db", PAIR))).put("orders", [b"message"])
        enter(closing(KeyStore(root / "own" / "keys.db", Window(), {}))).mark("key", KeyStatus.DONE, 0.0)
        enter(closing(open_file(root / "own" / "data.db")))
        enter(tls_for("test", [], root / "own" / "ca.pem"))
        archive = Archive(f"file:{root}/archive/below", "run")
        archive.create()
        archive.write("segments/q/1.parquet", b"")
        archive.write_line("held/1.jsonl", {})
        with files.replaced_file(str(root / "own" / "report.html")) as report:
            report.write_text("report")
        enter(KeptFile(root / "own" / "kept.jsonl", dict)).append(b"{}\\n")
        enter(files.ready_file(root / "own" / "ready.json"))({"port": 5672})
        create_file(root / "config" / "sbpair" / "config.toml", "")
        with files.temporary_directory("sbpair-") as temporary:
            os.close(files.open_new(temporary / "server.pem"))
            return {str(path): path.stat().st_mode for path in [temporary, *temporary.iterdir(), *root.rglob("*")]}


with tempfile.TemporaryDirectory() as folder:  # imports all modules: the user may not be allowed to read them
    write(Path(folder))
user = int(sys.argv[1])
if os.geteuid() != user:  # root could write to files and directories without any mode
    os.setegid(user)
    os.seteuid(user)
for root in map(Path, sys.argv[2:]):
    os.umask(int(root.name, 8))
    os.environ["XDG_STATE_HOME"] = str(root / "home")
    print(json.dumps(write(root)))
"""
PUBLIC = {"ca.pem": 0o644}
WRITTEN = {
    *(f"{name}.db{suffix}" for name in ("state", "outbox", "keys", "data") for suffix in ("", "-wal")),
    *(
        "state.db-shm",
        "lease",
        ".leases",
        "outbox.db-lock",
        "server.pem",
        "ca.pem",
        "ready.json",
        "report.html",
        "kept.jsonl",
    ),
    *("config.toml", "below", "run", "segments", "1.parquet", "1.jsonl"),
}


UMASKS = ("0", "27", "777")


def test_only_the_user_can_use_what_is_written_whatever_the_umask(open_path: Path) -> None:
    roots = [make_directory(open_path / umask, USER, GROUP, 0o700) for umask in UMASKS]
    environ = os.environ | {"TMPDIR": str(roots[0])}
    command = [sys.executable, "-c", WRITE, str(USER), *roots]
    done = subprocess.run(command, check=False, capture_output=True, env=environ)
    assert done.returncode == 0, done.stderr.decode()
    for umask, line in zip(UMASKS, done.stdout.splitlines(), strict=True):
        found = {Path(path): mode for path, mode in json.loads(line).items()}
        wrong = {
            str(path): oct(mode)
            for path, mode in found.items()
            if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else PUBLIC.get(path.name, 0o600))
        }
        assert (umask, wrong) == (umask, {})
        assert {path.name for path in found} >= WRITTEN


def test_a_spooled_file_has_no_name() -> None:
    with files.spooled_file() as file:
        file.write(bytes(files.MAX_SPOOLED + 1))
        assert os.fstat(file.fileno()).st_nlink == 0
