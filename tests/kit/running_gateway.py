"""An emulated pair with a gateway in front of its primary, in one thread: clients find the gateway where they look."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Self

from sbpair.gateway.gateway import Gateway, GatewayOptions
from sbpair.testing import Emulator
from tests.emulator.peer import Stage
from tests.kit.gateway_key import RULE, SIGN_IN
from tests.kit.pairs import pair_on
from tests.kit.running import Running


class RunningGateway(Running):
    """A running pair whose address and rule are those of its gateway; with TLS, that has the emulator's certificate.

    `namespaces` and `ready` are the emulator's, for management and for a look at entities. `gateway` belongs to the
    thread, as the emulator does.
    """

    rule = RULE

    def __init__(self, port: int = 0, gateway: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._wanted = {"port": port, **(gateway or {})}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.callback(super().__exit__)
        with ExitStack() as stack:
            stack.callback(self._stack.close)
            context = self.emulator._tls.context if self.emulator._tls else None
            tls = None if context is None else lambda: context
            made = Gateway(pair_on(self.emulator), _options(tls=tls, **self._wanted))
            self.gateway = self._stack.enter_context(self.entered(made))
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"


class GatewayStage(Stage):
    """A pair and its gateway in the loop of a test, whose peers connect to the gateway with its key."""

    sign_in = SIGN_IN

    def __init__(self, emulator: Emulator, gateway: Gateway) -> None:
        super().__init__(emulator)
        self.gateway = gateway

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"


@asynccontextmanager
async def open_gateway(**options: Any) -> AsyncIterator[GatewayStage]:
    async with Emulator() as emulator, Gateway(pair_on(emulator), _options(**options)) as gateway:
        yield GatewayStage(emulator, gateway)


def _options(**options: Any) -> GatewayOptions:
    return GatewayOptions(**{"rule": RULE, "port": 0, **options})
