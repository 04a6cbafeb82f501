"""The gateway's key: made once, private, and in no text."""

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbpair.amqp_server.shared_access import AccessRight
from sbpair.errors import MachineLacks, StateRefused
from sbpair.gateway.local_key import read_key
from tests.kit.users import GROUP, OTHER, USER, as_user, make_directory, needs_root, open_path

__all__ = ["open_path"]  # a fixture


def test_a_key_is_made_once_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "gateway.key"
    made = read_key(path)
    assert len(base64.b64decode(made.text)) == 32
    assert read_key(path) == made
    assert made != read_key(tmp_path / "other")
    assert [*path.parent.iterdir()] == [path]


def test_the_key_is_private_and_in_no_repr(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        key = read_key(tmp_path / "state" / "gateway.key")
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (key.path, key.path.parent)]
    assert modes == [0o600, 0o700]
    assert key.text not in f"{key!r} {key.rule!r} {key}"
    assert key.text in key.connection_string("localhost:5672")


def test_its_holder_may_send_and_listen_and_not_manage(tmp_path: Path) -> None:
    rule = read_key(tmp_path / "key").rule
    assert rule.rights == {AccessRight.SEND, AccessRight.LISTEN}
    assert [rule.has_key(each) for each in (read_key(tmp_path / "key").text, "", "SAS_KEY_VALUE")] == [
        True,
        False,
        False,
    ]


def test_starts_at_the_same_time_have_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: read_key(tmp_path / "key").text, range(40)))
    assert len(keys) == 1
    assert [*tmp_path.iterdir()] == [tmp_path / "key"]


@pytest.mark.parametrize("content", ["", "short", "c2hvcnQ=", "A" * 43 + "!", "\xff" * 50])
def test_a_file_without_a_key_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StateRefused, match="no key of 32 bytes"):
        read_key(path)
    assert path.read_text() == content


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (USER, 0o600, ""),
        (USER, 0o400, ""),
        (0, 0o440, ""),
        (USER, 0o640, "other users can use the key"),
        (USER, 0o604, "other users can use the key"),
        (USER, 0o602, "other users can use the key"),
        (0, 0o460, "other users can use the key"),
        (0, 0o444, "other users can use the key"),
        (OTHER, 0o640, "belongs to"),
    ],
)
def test_a_key_that_others_can_use_is_refused(open_path: Path, owner: int, mode: int, why: str) -> None:
    path = open_path / "key"
    path.write_text(base64.b64encode(bytes(32)).decode())
    os.chown(path, owner, GROUP)
    path.chmod(mode)
    with as_user(USER, groups=(GROUP,)):
        if not why:
            assert read_key(path).text == path.read_text()
            return
        with pytest.raises(StateRefused, match=why) as refused:
            read_key(path)
    assert path.read_text() not in f"{refused.value} {refused.value.hint}"


@needs_root
def test_the_link_of_another_user_is_not_followed(open_path: Path) -> None:
    own = make_directory(open_path / "own", USER, USER, 0o755)
    shared = make_directory(open_path / "shared", 0, 0, 0o1777)
    with as_user(USER):
        read_key(own / "key")
    with as_user(OTHER):
        (shared / "link").symlink_to(own / "key")
    with as_user(USER), pytest.raises(StateRefused, match="symbolic link of another user"):
        read_key(shared / "link")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineLacks, match="file"):
        read_key(tmp_path / "file" / "key")
