"""Whose state is used: directories, files, leases and names that other users made or can change are refused."""

import os
import socket
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from sbpair.emulator.storage.data_file import open_file
from sbpair.errors import LeaseHeld, MachineLacks, StateRefused
from sbpair.failover.outbox import Outbox, outbox_depths
from sbpair.model.pair import Pair
from sbpair.operating_system import file_lock, ownership
from sbpair.replication.keys import KeyStore, Window
from sbpair.runs import control, file_lease
from sbpair.runs.control import RunControl, Wanted
from sbpair.runs.database import RunDatabase, state_if_any
from sbpair.runs.file_lease import Lease, MachineName, lease_directory
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import RunEntry, all_runs
from tests.kit.users import GROUP, OTHER, USER, as_user, make_directory, needs_root, open_path
from tests.runs.states import KEY, PAIR, accepted, sending

__all__ = ["open_path"]  # a fixture

Opener = Callable[[Path], object]


def open_outbox(path: Path) -> Outbox:
    return Outbox(path, Pair("p", PAIR.primary, PAIR.secondary))


def open_keys(path: Path) -> KeyStore:
    return KeyStore(path, Window(), {})


ROOTS: dict[str, tuple[int, int, int]] = {
    "a volume of Kubernetes": (0, GROUP, 0o2770),
    "a volume that others can read": (0, GROUP, 0o2775),
}
REFUSED_FOR_ROOTS: dict[str, tuple[int, int, int, str]] = {
    "of root alone": (0, 0, 0o755, "belongs to root, and to no group of this user"),
    "of another user, in this one's group": (OTHER, GROUP, 0o2770, f"belongs to {OTHER}, not to {USER}"),
    "a volume that all may write": (0, GROUP, 0o2777, "all users of this machine may write to"),
}


@pytest.mark.parametrize(
    ("owner", "group", "mode"),
    [
        pytest.param(USER, GROUP, 0o700, id="own"),
        pytest.param(USER, GROUP, 0o2770, id="own, also of a group"),
        *(pytest.param(*given, id=name, marks=needs_root) for name, given in ROOTS.items()),
    ],
)
def test_a_trusted_directory_is_used(open_path: Path, owner: int, group: int, mode: int) -> None:
    home = make_directory(open_path / "state", owner, group, mode)
    with as_user(USER, (GROUP,)):
        for _ in range(2):  # the files of the first run are trusted, too
            with Lease(home, "r"), RunDatabase(home, PAIR.ends) as state:
                run, journal = RunEntry(state, "syphon"), Journal(state)
                accepted(journal, sending(journal, [KEY], "orders"))
                run.finish({}, 0)
                run.close()
            (home / "outbox").mkdir(exist_ok=True)
            open_outbox(home / "outbox" / "box.db").close()
        with closing(state_if_any(home, PAIR.ends) or nullcontext()) as found:
            assert isinstance(found, RunDatabase)
            assert len(all_runs(found)) == 2


@pytest.mark.parametrize("opened", ["written", "read", "leased"])
@pytest.mark.parametrize(
    ("owner", "group", "mode", "says"),
    [
        pytest.param(USER, GROUP, 0o707, "all users of this machine may write to", id="all may write"),
        pytest.param(USER, GROUP, 0o1777, "all users of this machine may write to", id="as /tmp"),
        *(pytest.param(*given, id=name, marks=needs_root) for name, given in REFUSED_FOR_ROOTS.items()),
    ],
)
def test_a_directory_of_others_is_refused(
    open_path: Path, opened: str, owner: int, group: int, mode: int, says: str
) -> None:
    home = make_directory(open_path / "state", owner, group, mode)
    openers: dict[str, Opener] = {
        "written": lambda home: RunDatabase(home, PAIR.ends),
        "read": lambda home: state_if_any(home, PAIR.ends),
        "leased": lambda home: Lease(home, "r"),
    }
    with as_user(USER, (GROUP,)), pytest.raises(StateRefused, match=says) as refused:
        openers[opened](home)
    assert (refused.value.exit_code, str(home) in refused.value.message) == (4, True)
    assert refused.value.hint
    assert list(home.iterdir()) == []


@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_lease_of_another_user_in_a_volume_is_refused(open_path: Path, mode: int) -> None:
    home = make_directory(open_path / "state", 0, GROUP, 0o2770)
    (home / "lease").touch()
    (home / "lease").chmod(mode)
    os.chown(home / "lease", OTHER, GROUP)
    with as_user(USER, (GROUP,)), pytest.raises(StateRefused, match=f"lease belongs to {OTHER}, not to {USER}"):
        Lease(home, "r")


FILES: dict[str, tuple[Opener, str]] = {
    "outbox": (open_outbox, "outbox.db"),
    "depth of an outbox": (outbox_depths, "outbox.db"),
    "key store": (open_keys, "keys.db"),
    "data file": (open_file, "data.db"),
}


@needs_root
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_another_user_made_is_refused(open_path: Path, kind: str, suffix: str) -> None:
    opened, name = FILES[kind]
    home = make_directory(open_path / "shared", USER, GROUP, 0o2770)
    for each in {"", suffix}:
        planted = home / f"{name}{each}"
        planted.write_bytes(b"")
        os.chown(planted, OTHER if each == suffix else USER, GROUP)
        planted.chmod(0o660)
    with as_user(USER, (GROUP,)), pytest.raises(StateRefused, match=f"{name}{suffix} belongs to {OTHER}"):
        opened(home / name)
    assert (home / f"{name}{suffix}").read_bytes() == b""


@pytest.mark.parametrize("kind", ["outbox", "depth of an outbox", "key store"])
def test_a_file_where_all_users_may_plant_others_is_refused(open_path: Path, kind: str) -> None:
    opened, name = FILES[kind]
    home = make_directory(open_path / "shared", USER, GROUP, 0o1777)
    (home / name).touch()
    if os.geteuid() == 0:
        os.chown(home / name, USER, GROUP)
    hint = f"name a directory of your own, such as {home}/{ownership.user_name(USER)} with mode 700"
    with as_user(USER), pytest.raises(StateRefused, match="all users of this machine may write to") as refused:
        opened(home / name)
    assert refused.value.hint == hint
    assert list(home.iterdir()) == [home / name]


def hard_link(lease: Path, precious: Path) -> None:
    os.link(precious, lease)


def open_to_all(lease: Path, _precious: Path) -> None:
    lease.touch()
    lease.chmod(0o666)


def symbolic_link(lease: Path, precious: Path) -> None:
    lease.symlink_to(precious)


@pytest.mark.parametrize("plant", [hard_link, open_to_all, symbolic_link])
def test_a_planted_lease_file_changes_no_other_file(tmp_path: Path, plant: Callable[[Path, Path], None]) -> None:
    home, precious = tmp_path / "state", tmp_path / "precious"
    home.mkdir(mode=0o700)
    precious.write_text("precious")
    plant(home / "lease", precious)
    with pytest.raises(Exception, match=str(home / "lease")) as refused:
        Lease(home, "r")
    assert getattr(refused.value, "exit_code", 0) == (7 if plant is symbolic_link else 4)
    assert precious.read_text() == "precious"


@needs_root
def test_root_reads_the_state_of_a_user_and_changes_nothing(open_path: Path) -> None:
    home = make_directory(open_path / "orders", USER, GROUP, 0o700)
    with as_user(USER):
        state = RunDatabase(home, PAIR.ends)
        run = RunEntry(state, "syphon")
    before = {path.name: path.stat().st_uid for path in home.iterdir()}
    found = state_if_any(home, PAIR.ends)
    assert found is not None
    assert [each.id for each in all_runs(found)] == [run.id]
    with pytest.raises(StateRefused, match=f"belongs to {USER}, and root does not write there") as refused:
        control.request(found, run.id, Wanted.PAUSED, 0)
    assert refused.value.hint == f"run it as that user: sudo -u '#{USER}' sbpair …"
    found.close()
    assert RunControl(state, run.id).wanted() is Wanted.RUNNING
    assert {path.name: path.stat().st_uid for path in home.iterdir()} == before
    with as_user(USER):
        run.close()
        state.close()
    with closing(state_if_any(home, PAIR.ends) or nullcontext()) as ended:
        assert isinstance(ended, RunDatabase)
        assert [each.id for each in all_runs(ended)] == [run.id]
    assert {path.name for path in home.iterdir()} == {"state.db"}


@needs_root
@pytest.mark.parametrize("opened", [lambda home: RunDatabase(home, PAIR.ends), lambda home: Lease(home, "r")])
@pytest.mark.parametrize("exists", [True, False])
def test_root_does_not_write_to_the_state_of_a_user(open_path: Path, exists: bool, opened: Opener) -> None:
    """As under an old sudo, which leaves HOME as it was."""
    above = make_directory(open_path / "sbpair", USER, GROUP, 0o700)
    if exists:
        make_directory(above / "orders", USER, GROUP, 0o700)
    with pytest.raises(StateRefused, match="root does not write there"):
        opened(above / "orders")
    assert [*above.rglob("*")] == ([above / "orders"] if exists else [])


@needs_root
def test_root_makes_no_state_in_the_home_of_a_user(open_path: Path) -> None:
    """As under sudo with HOME kept, by a user who has no state yet."""
    home = make_directory(open_path / "home", USER, GROUP, 0o700)
    with pytest.raises(StateRefused, match=f"home belongs to {USER}, and root does not write there") as refused:
        RunDatabase(home / ".local/state/sbpair/orders", PAIR.ends)
    assert "sudo -u" in refused.value.hint
    assert list(home.iterdir()) == []


@needs_root
def test_a_user_hears_what_root_has_made_in_the_way(open_path: Path) -> None:
    make_directory(open_path / ".local", 0, 0, 0o700)
    with as_user(USER), pytest.raises(MachineLacks) as lacked:
        RunDatabase(open_path / ".local/state/sbpair/orders", PAIR.ends)
    assert f"{open_path}/.local belongs to root: chown -R {USER} {open_path}/.local, or pass" in lacked.value.hint


@needs_root
def test_a_lease_that_another_user_made_is_refused(monkeypatch: pytest.MonkeyPatch, open_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(open_path))
    monkeypatch.setattr(file_lease, "MACHINE", str(open_path))
    directory = lease_directory(os.environ)
    directory.mkdir(parents=True)
    os.chown(directory, OTHER, GROUP)
    with (
        pytest.raises(StateRefused, match="root does not write there"),
        file_lease.hold_machine_leases(PAIR.ends, None, "r"),
    ):
        pass


@needs_root
def test_a_name_that_another_user_has_taken_is_refused_and_says_whose(open_path: Path) -> None:
    name = f"{open_path}/lease"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(file_lock._abstract(f"{file_lease.MACHINE}/{name}", 0))
        with as_user(OTHER):
            taken.listen(1)
        with pytest.raises(StateRefused, match=f"process {os.getpid()} of {OTHER} has taken the name") as refused:
            MachineName(name, "this pair")
    assert "--no-lease" in refused.value.hint
    first = MachineName(name, "this pair")
    with pytest.raises(LeaseHeld, match=f"process {os.getpid()} is moving"):
        MachineName(name, "this pair")
    first.release()


@pytest.mark.parametrize(
    ("kind", "options", "is_used"),
    [
        ("cifs", "rw,uid=0,dir_mode=0777", True),
        ("vfat", "rw", True),
        ("9p", "rw,aname=drvfs;path=C:\\", True),
        ("9p", "rw,access=client", False),
        ("ext4", "rw", False),
        ("tmpfs", "rw", False),
    ],
)
def test_a_directory_on_a_mount_without_modes_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str, is_used: bool
) -> None:
    home = make_directory(tmp_path / "state", os.getuid(), os.getgid(), 0o777)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\n//share {home} {kind} {options} 0 0\n")
    monkeypatch.setattr(ownership, "MOUNTS", mounts)
    with nullcontext() if is_used else pytest.raises(StateRefused):
        RunDatabase(home, PAIR.ends).close()
