"""The programs for Go and Java of this folder, built once for each version and kept outside of this tree."""

import hashlib
import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

from tests.clients.driver import compiled
from tests.integration.node.install import NotHere, kept

HERE = Path(__file__).parent
BUILD_SECONDS, RUN_SECONDS = 300, 120


def java() -> list[str]:
    """Return the command of the program for Java, which compiles it. Raises NotHere."""

    pom = HERE / "java" / "pom.xml"

    def fetch(folder: Path) -> None:
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        _run([_tool("mvn"), "--batch-mode", "--quiet", "--file", str(pom), *copy])

    version = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    script = str(HERE / "java" / "Client.java")
    return [_tool("java"), "-cp", str(kept(f"java-{version}", fetch) / "*"), script]


PROGRAMS = {"Go": partial(compiled, HERE / "go"), "Java": java}


def steps(command: list[str], connection_string: str, **entities: str) -> dict[str, object]:
    """Run a program. Return the result of each step; its error, in a list of one, for one that has failed."""
    known = {"PATH": os.environ["PATH"], "CONNECTION_STRING": connection_string, **entities}
    ran = subprocess.run(command, env=known, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["step"]: line.get("result", [f"error: {line.get('error')}"]) for line in lines}


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotHere(f"there is no {name} here")
    return found


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or error.stdout or b"").decode(errors="replace")[-300:]
        raise NotHere(f"{Path(command[0]).name} cannot build its program here: {said}") from error
