"""The time of `sbpair --help`, as a multiple of the help of a Typer application with two commands.

python tests/benchmarks/help.py [ROUNDS] exits with 1 above the limit. The two take turns, and the fastest run of each
counts: another load of the machine only makes a run slower.
"""

import subprocess
import sys
import time

LIMIT = 1.25
TWO_COMMANDS = """
import typer
app = typer.Typer()
@app.command()
def one(count: int = 1) -> None:
    "The first."
@app.command()
def two(count: int = 1) -> None:
    "The second."
app()
"""
OURS = [sys.executable, "-m", "sbpair", "--help"]
THEIRS = [sys.executable, "-c", TWO_COMMANDS, "--help"]


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main(rounds: int) -> int:
    pairs = [(seconds(OURS), seconds(THEIRS)) for _ in range(rounds)]
    ours, theirs = (min(each) for each in zip(*pairs, strict=True))
    sys.stdout.write(f"sbpair {ours:.3f} s, two commands {theirs:.3f} s, ratio {ours / theirs:.2f} (limit {LIMIT})\n")
    return int(ours / theirs > LIMIT)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
