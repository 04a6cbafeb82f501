"""Mutation tests: `python -m tests.mutants MODULE_FILE... [--sample 60] [--again]`.

Makes mutants of functions by mutmut's operators, and runs for each the tests that execute its lines, until one fails.
The tests are imported once; each mutant is a fork whose functions get the mutated code, so it does not reach commands
in processes of their own. The folder `.mutants` keeps the coverage, measured once, and a line for each mutant tried: a
command that was interrupted goes on. `--again` tries the survivors again. Not applied are mutants of a function that
uses fewer variables of its scope, such as one without its `super()`.

Not mutated, as no test should pin them: annotations, defaults, decorators, asserts, `__repr__`, what is raised or
logged, the type of a cast, and texts with a space.
"""

import argparse
import difflib
import gc
import hashlib
import importlib
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import libcst as cst
import pytest
from _pytest.runner import runtestprotocol
from _pytest.warnings import catch_warnings_for_item
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

FOLDER = Path(".mutants")
UNMUTATED = (cst.Annotation, cst.Assert, cst.Decorator, cst.Parameters, cst.Raise)
NOT_CALLED = {"cast", "debug", "info", "warning", "error", "exception", "log"}

NOT_APPLIED = 2
ENDS = {0: "survived", -signal.SIGALRM: "timeout", NOT_APPLIED: "not applied"}


def _negated(node: Any) -> Iterator[cst.CSTNode]:
    inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), inner))


def _removed(node: cst.Expr) -> Iterator[cst.CSTNode]:
    if isinstance(node.value, cst.Call | cst.Await):
        is_super = "super()" in cst.Module([]).code_for_node(node)
        # A function keeps its free variables: `super()` has one.
        yield node.with_changes(value=cst.Name("__class__")) if is_super else cst.Pass()


OPERATORS: list[Any] = [*mutation_operators, (cst.If, _negated), (cst.While, _negated), (cst.Expr, _removed)]
"""Mutmut has none that negates a condition, or removes a call for its effect."""


def mutations(node: cst.CSTNode, function: bool = False) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield nodes of functions, each with a mutated one."""
    called = getattr(node, "func", None)
    if isinstance(node, UNMUTATED) or getattr(getattr(called, "attr", called), "value", None) in NOT_CALLED:
        return
    if isinstance(node, cst.FunctionDef):
        if node.name.value == "__repr__":
            return
        function = True
    elif function and not (isinstance(node, cst.BaseString) and " " in getattr(node, "value", " ")):
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                made = list(operator(node))
                # In SQL and in headers, case counts for nothing.
                for new in made[:1] if isinstance(node, cst.BaseString) else made:
                    if getattr(getattr(new, "value", None), "value", None) != '""':  # as false as None is
                        yield node, new
    for child in node.children:
        yield from mutations(child, function)


class Module:
    """A module, its mutants, and its functions in this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.source = Path(path).read_text("utf-8")
        wrapper = MetadataWrapper(cst.parse_module(self.source))
        self._tree, self._positions = wrapper.module, wrapper.resolve(PositionProvider)
        self.mutations = list(mutations(self._tree))
        self._file = importlib.import_module(path.removesuffix(".py").replace("/", ".")).__file__
        self._functions = [
            found
            for found in gc.get_objects()
            if isinstance(found, FunctionType) and found.__code__.co_filename == self._file
        ]

    def mutant(self, number: int) -> tuple[str, range]:
        """Return the source of a mutant, and the lines that it changes."""
        old, new = self.mutations[number]
        place = self._positions[old]
        return self._tree.deep_replace(old, new).code, range(place.start.line, place.end.line + 1)  # type: ignore[union-attr]

    def difference(self, mutant: str) -> str:
        lines = difflib.unified_diff(self.source.splitlines(), mutant.splitlines(), self.path, self.path, "", "", 1, "")
        return "\n".join(list(lines)[2:])

    def become(self, mutant: str) -> bool:
        """Give this process's functions the code of a mutant. Returns False if one has other variables of its scope."""
        new = self._codes(mutant)
        keys = {(code.co_qualname, code.co_firstlineno): key for key, code in self._codes(self.source).items()}
        for function in self._functions:
            code = function.__code__
            found = new.get(keys.get((code.co_qualname, code.co_firstlineno)), code)
            if len(found.co_freevars) != len(code.co_freevars):
                return False
            function.__code__ = found
        return True

    def _codes(self, source: str) -> dict[tuple[str, int], CodeType]:
        """Return code by its name, and its number among those of the same name: lines may move."""
        codes: dict[tuple[str, int], CodeType] = {}
        count: Counter[str] = Counter()

        def walk(code: CodeType) -> None:
            for constant in code.co_consts:
                if isinstance(constant, CodeType):
                    codes[constant.co_qualname, count[constant.co_qualname]] = constant
                    count[constant.co_qualname] += 1
                    walk(constant)

        walk(compile(source, self._file, "exec"))
        return codes


class Tests:
    """The tests that execute lines of modules: they are collected by pytest, and run in forks."""

    def __init__(self, options: argparse.Namespace, output: int) -> None:
        self._options = options
        self._output = output
        self._kills: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._measured = (FOLDER / "durations").read_text()
        for seconds, name in re.findall(r"^([\d.]+)s (?:call|setup) +(.*)$", self._measured, re.MULTILINE):
            self._seconds[name] += float(seconds)
        self._coverage = coverage.CoverageData(str(FOLDER / "coverage"))
        self._coverage.read()
        self._tried: dict[str, dict[str, Any]] = {}
        if (FOLDER / "tried").exists():
            for line in (FOLDER / "tried").read_text("utf-8").splitlines():
                self._note(json.loads(line))

    def _note(self, result: dict[str, Any]) -> None:
        self._tried[result["id"]] = result
        if result["killer"]:
            self._kills[result["module"], result["killer"]] += 1

    def pytest_configure(self) -> None:
        import hypothesis  # pytest rewrites its plugins, so none is imported before

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items if f"FAILED {item.nodeid}" not in self._measured}
        gc.unfreeze()
        modules = [Module(path) for path in self._options.modules]
        gc.collect()
        gc.freeze()
        for module in modules:
            self._try(module, items)
        return True

    def _try(self, module: Module, items: dict[str, pytest.Item]) -> None:
        contexts = self._coverage.contexts_by_lineno(str(Path(module.path).resolve()))
        numbers = list(range(len(module.mutations)))
        random.Random(self._options.seed).shuffle(numbers)
        results = []
        running: dict[int, tuple[int, dict[str, Any]]] = {}
        for number in numbers[: self._options.sample]:
            mutant, lines = module.mutant(number)
            name = hashlib.sha256(f"{module.path}:{number}:{mutant}".encode()).hexdigest()[:12]
            known = self._tried.get(name)
            if known and not (self._options.again and known["end"] == "survived"):
                results.append(known)
                continue
            covering = {context.rpartition("|")[0] for line in lines for context in contexts.get(line, ())}
            chosen = self._chosen(module.path, covering & items.keys())
            result = {"id": name, "module": module.path, "line": lines.start, "diff": module.difference(mutant)}
            if len(running) == self._options.workers:
                results.append(self._ended(running))
            output, pid = self._fork(module, mutant, [items[test] for test in chosen])
            running[output] = pid, {**result, "covering": len(covering), "run": len(chosen)}
        while running:
            results.append(self._ended(running))
        ends = Counter(result["end"] for result in results)
        row = f"{module.path:40} mutants {len(numbers):4}, tried {len(results):4}"
        os.write(self._output, f"{row}{''.join(f', {end} {count}' for end, count in sorted(ends.items()))}\n".encode())

    def _chosen(self, module: str, tests: set[str]) -> list[str]:
        """Return the tests for a mutant: the likely killers and the fastest first, within the time."""
        chosen, seconds = [], 0.0
        for test in sorted(tests, key=lambda test: (self._seconds[test] + 0.01) / (1 + self._kills[module, test])):
            seconds += self._seconds[test]
            if not chosen or seconds < self._options.seconds:
                chosen.append(test)
        return chosen

    def _fork(self, module: Module, mutant: str, tests: list[pytest.Item]) -> tuple[int, int]:
        """Run tests until one fails, in a process that writes the number of each before it runs."""
        end, start = os.pipe()
        pid = os.fork()
        if pid:
            os.close(start)
            return end, pid
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if not module.become(mutant):
            os._exit(NOT_APPLIED)
        for number, item in enumerate(tests):
            os.write(start, f"{number} {item.nodeid}\n".encode())
            signal.setitimer(signal.ITIMER_REAL, 5 + 5 * self._seconds[item.nodeid])
            # Pytest applies the filters of marks around `runtestprotocol`, which is called here alone.
            with catch_warnings_for_item(item.config, item.ihook, when="runtest", item=item):
                reports = runtestprotocol(item, log=False)
            if any(report.failed for report in reports):
                os._exit(1)
        os._exit(0)

    def _ended(self, running: dict[int, tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        """Wait until a mutant has ended, and note how."""
        while True:
            ready = select.select(list(running), [], [])[0][0]
            pid, result = running[ready]
            text = os.read(ready, 1 << 16).decode()
            if text:
                result["killer"] = text.strip().splitlines()[-1].partition(" ")[2]
                continue
            break
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(ready)
        del running[ready]
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the tests started
        result["end"] = ENDS.get(status, "killed")
        if status in (0, NOT_APPLIED):
            result["killer"] = ""
        with (FOLDER / "tried").open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        self._note(result)
        return result


def measure(tests: list[str], workers: int) -> None:
    """Run the tests once, and note the lines that each executes, and its time. One that fails tells nothing later."""
    (FOLDER / "settings").write_text(f"[run]\nsource = sbpair\ndata_file = {FOLDER / 'coverage'}\n", "utf-8")
    options = ["-q", "-n", str(workers), "--durations=0", "--cov", "--cov-context=test", "--cov-report="]
    command = [sys.executable, "-m", "pytest", *options, f"--cov-config={FOLDER / 'settings'}", *tests]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode > 1:  # not only tests that fail
        sys.exit(run.stdout)
    (FOLDER / "durations").write_text(run.stdout, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument(
        "--tests", nargs="+", default=[f"tests/{name}" for name in ("move", "runs", "syphon", "faults", "message_io")]
    )
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="for the tests of one mutant, the fastest first")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if not (FOLDER / "durations").exists():
        measure(options.tests, options.workers)
    output = os.dup(1)
    pytest.main(["-q", *options.tests], plugins=[Tests(options, output)])


if __name__ == "__main__":
    main()
