"""What Spark is started with on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbpair.replay import spark


@pytest.mark.parametrize(
    ("master", "collector"), [("local[2,4]", "Serial"), ("local", "Serial"), ("local[16]", "Parallel")]
)
def test_a_local_java_leaves_the_cores_to_the_workers(master: str, collector: str) -> None:
    options = spark.local_settings(master)[spark.JAVA_OPTIONS].split()
    assert f"-XX:+Use{collector}GC" in options
    assert "-XX:TieredStopAtLevel=1" in options


def test_a_remote_one_is_not_told_anything() -> None:
    assert spark.local_settings("spark://host:7077") == {}


def test_what_the_user_says_of_java_comes_last(tmp_path: Path) -> None:
    said = spark._java_options("local[2]", "-XX:+UseG1GC", tmp_path, verbose=False)
    assert said.endswith("-XX:+UseG1GC")
    assert "log4j2" in said
    assert spark._java_options("spark://host:7077", "", tmp_path, verbose=True) == ""
