"""The relay `default` of two emulated namespaces, for the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sbpair.relay import RelayAnswer, RelayListener, load_relay_pair
from sbpair.testing import EmulatorThread
from tests.kit.command import environment, untimed

PATHS = {"contoso": "service-east", "contoso-dr": "service-west"}


class RelayWorld:
    """The relay `default` of two emulated namespaces, and command lines in its environment."""

    def __init__(self, thread: EmulatorThread, here: Any) -> None:
        self.emulator = thread.emulator
        self.environ = environment(None, NO_COLOR="1")
        for side, (name, path) in zip(("PRIMARY", "SECONDARY"), PATHS.items(), strict=True):
            namespace = self.emulator.namespaces[name]
            thread.do(lambda namespace=namespace, path=path: namespace.hybrid_connections.create(path))
            ready = next(each for each in self.emulator.ready.namespaces if each.name == name)
            self.environ[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = f"{ready.connection_string};EntityPath={path}"
        self._here = here
        self._thread = thread

    def run(self, *words: str, **changed: str) -> tuple[int, str, list[str]]:
        """Return the exit code, stdout and the lines of stderr."""
        code, out, err = self._here("relay", *words, **self.environ | changed)
        return code, out, untimed(err).splitlines()

    def listener(self, status: int = 200, side: Any = None) -> RelayListener:
        pair = load_relay_pair(environ=self.environ)
        return RelayListener(pair if side is None else pair[side], lambda request: echoed(request, status))

    @contextmanager
    def during(self, kind: str, namespace: str, **wanted: int | str) -> Iterator[None]:
        """Begin a fault for the duration of a block."""
        fault = self.emulator.faults.during(kind, namespace, **wanted)
        self._thread.do(fault.__enter__)
        try:
            yield
        finally:
            self._thread.do(lambda: fault.__exit__(None, None, None))


def echoed(request: Any, status: int) -> RelayAnswer:
    """Answer with method, target and size of a request."""
    text = f"{request.method} {request.target} {len(request.read())}\n"
    return RelayAnswer(status, {"Content-Type": "text/plain"}, text.encode())
