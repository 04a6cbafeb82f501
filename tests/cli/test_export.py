"""`sbpair export` to a file, and its heading. Its documents are in `sessions/management.txt`."""

from pathlib import Path

from tests.kit.command import Here

ENTITIES = '[queues.orders]\nforward_to = "elsewhere"\n'


def test_a_file_holds_what_stdout_would_with_the_command_without_the_pair(here: Here, tmp_path: Path) -> None:
    target, entities = tmp_path / "secondary.bicep", tmp_path / "entities.toml"
    entities.write_text(ENTITIES)
    pair = ("--primary", "contoso", "--secondary", "contoso-dr")
    words = ("export", "bicep", *pair, "--count", "3", "--partitioned", "--entities", str(entities))
    code, out, err = here(*words)
    assert (code, err.rpartition("warning: ")[2]) == (0, "forwarding targets that must exist already: elsewhere\n")
    assert here(*words, "--write", "-")[1] == out
    lines = out.splitlines()
    assert lines[0] == "// Service Bus namespace contoso-dr: the backlog queues of contoso and one other entity."
    assert lines[1].startswith(
        f"// Written by: sbpair export bicep --side secondary --count 3 --entities {entities} --partitioned (version "
    )
    assert "    enablePartitioning: true" in lines
    assert here(*words, "--write", str(target))[0] == 0
    assert target.read_text() == out
