"""The README of management against the package: examples, findings and public names."""

import asyncio
import os
import re
import sys
from pathlib import Path

import sbpair.management
from sbpair.management import AuditFinding, parse_entities
from sbpair.testing import Emulator

README = (Path(sbpair.management.__file__).parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_entities_example_describes_every_kind() -> None:
    [example] = blocks("toml")
    assert {each.kind for each in parse_entities(example, "README.md").entities} == {
        "queue",
        "topic",
        "subscription",
        "rule",
    }


def test_table_of_findings_names_every_finding() -> None:
    section = README.partition("## Audit\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, flags=re.MULTILINE)) == set(AuditFinding)


async def test_python_example_runs_against_two_namespaces() -> None:
    [example] = blocks("python")
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        environ = {
            f"SBPAIR_{side}_{name}": value
            for side, namespace in (("PRIMARY", "contoso"), ("SECONDARY", "contoso-dr"))
            for name, value in (
                ("NAME", namespace),
                ("CONNECTION_STRING", emulator.namespaces[namespace].connection_string),
            )
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", example),
            env=os.environ | environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
    lines = output.decode().splitlines()
    assert process.returncode == 0, errors.decode()
    assert "orders created " in lines
    assert lines[-6:] == [
        "exit code 0",
        "findings []",
        "would remove []",
        "created True",
        "shipments created (16,)",
        "session_id",
    ]
    assert f"# {lines[-1]}\n" in example
