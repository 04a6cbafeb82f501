"""Large bodies and WebSockets pass the relay to the byte, in flat memory, and many WebSockets are open at once."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark

MAX_GROWTH_MB = 8
MAX_KB = 40


@pytest.mark.slow
def test_large_streams_and_many_sockets_need_little_memory() -> None:
    """The benchmark fails if a byte differs, or a message reaches another connection."""
    found = benchmark("relay_streams", "--megabytes", "10", "100", "--sockets", "200", "1500")
    for figures in found["streams"].values():
        assert max(figures["grown_mb"].values()) < MAX_GROWTH_MB
    assert found["sockets"]["count"] == 1500
    assert max(found["sockets"]["kb_each"].values()) < MAX_KB
