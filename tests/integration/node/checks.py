"""The checks of a script for Node.js: all run in one process, at once, and each is a test of its own."""

import json
import os
import re
import subprocess
from pathlib import Path

RUN_SECONDS = 240


def names(script: Path) -> list[str]:
    return re.findall(r'^  "([^"]+)": async', script.read_text(), flags=re.MULTILINE)


def environment(packages: Path, ca_file: object, **variables: str) -> dict[str, str]:
    known = {"PATH": os.environ["PATH"], "MODULES": f"{packages}/", "NODE_EXTRA_CA_CERTS": str(ca_file)}
    return known | variables


def run(node: str, script: Path, environ: dict[str, str]) -> dict[str, str | None]:
    """Run all checks, and return the error of each, None where it passed."""
    words = [node, str(script)]
    ran = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {line["check"]: line["error"] for line in lines}
