"""The README's first minute with a built wheel in an empty environment, and the seconds that each command takes.

`python -m tests.packaging.first_minute WHEEL [DIRECTORY]` needs an index of packages; the emulator has free ports.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

README = (Path(__file__).parents[2] / "README.md").read_text()
EMULATOR = ("emulator", "--quiet", "--namespace", "contoso=0", "--namespace", "contoso-dr=0")
LAST_EXPORT = "export SBPAIR_SECONDARY_CONNECTION_STRING="


@dataclass(frozen=True)
class Step:
    command: str
    seconds: float
    output: str


def block(mark: str) -> list[str]:
    """Return the commands of the README's block after a mark, without their comments."""
    [text] = re.findall(rf"<!-- {mark} -->\n```sh\n(.*?)```", README, flags=re.DOTALL)
    return [line.split("  #")[0].rstrip() for line in text.splitlines()]


def installation(wheel: Path) -> list[str]:
    """Return the commands that install the wheel and run the drill."""
    [setup, drill] = block("drill")
    create, install = setup.split(" && ")
    assert (create.split()[0], install.split()[-1]) == ("python3", ".")
    return [create.replace("python3", sys.executable), f"{install.removesuffix('.')}{wheel}", drill]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose `sbpair` is the installed one, with a state of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "PYTHON", "VIRTUAL"))}
    path = f"{folder / '.venv/bin'}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}


def timed(command: str, folder: Path, before: str = "") -> Step:
    """Run one command in a shell. Raises CalledProcessError unless it ends with 0."""
    shell = ["bash", "-euo", "pipefail", "-c", f"{before}\n{command}"]
    start = time.perf_counter()
    done = subprocess.run(shell, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return Step(command, time.perf_counter() - start, done.stdout)


@contextmanager
def emulator(folder: Path) -> Iterator[str]:
    """Run the installed emulator; yield the exports that it prints."""
    command = [str(folder / ".venv/bin/sbpair"), *EMULATOR]
    with subprocess.Popen(command, env=environment(folder), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith(LAST_EXPORT):
                    break
            yield "".join(lines)
        finally:
            process.terminate()


def first_minute(wheel: Path, folder: Path) -> list[Step]:
    """Install, drill, provision, strand, audit, syphon and receive, as the README has it."""
    steps = [timed(command, folder) for command in installation(wheel.absolute())]
    with emulator(folder) as exports:
        return steps + [timed(command, folder, exports) for command in block("first-minute")]


def main(wheel: str, folder: str | None = None) -> None:
    with TemporaryDirectory() as scratch:
        steps = first_minute(Path(wheel), Path(folder or scratch))
    rows = [(step.seconds, step.command) for step in steps]
    rows.append((sum(step.seconds for step in steps), "in all"))
    sys.stdout.writelines(f"{seconds:6.1f} s  {command}\n" for seconds, command in rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
