"""The public modules: every name resolves, and importing them loads nothing heavy."""

import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

PUBLIC = (
    *("sbpair", "sbpair.aio", "sbpair.events", "sbpair.management", "sbpair.testing"),
    *("sbpair.relay", "sbpair.relay.aio", "sbpair.spark"),
)
HEAVY = {"aiohttp", "azure", "click", "lark", "pyarrow", "pyspark", "rich", "sbpair.emulator", "sbpair.syphon", "typer"}


def names() -> list[tuple[str, str]]:
    return [(module, name) for module in (*PUBLIC, "sbpair.syphon") for name in import_module(module).__all__]


@pytest.mark.parametrize(("module", "name"), names(), ids=lambda text: text)
def test_public_name_resolves(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("module", PUBLIC)
def test_dir_lists_public_names_and_others_are_refused(module: str) -> None:
    public = import_module(module)
    assert set(public.__all__) - {"__version__"} <= set(dir(public))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        public.missing  # noqa: B018


def test_event_names_are_those_of_their_unions() -> None:
    from sbpair import events

    unions = (events.SenderEvent, events.SyphonEvent, events.ReplicationEvent, events.RelayEvent)
    members = {each.__name__ for union in unions for each in union.__args__}
    assert members <= set(events.__all__)


@pytest.mark.parametrize(
    "module", ["sbpair.events", "sbpair.management", "sbpair.relay", "sbpair.syphon", "sbpair.testing"]
)
def test_every_public_name_has_a_type_for_checkers(module: str) -> None:
    public = import_module(module)
    imports = re.findall(r"^    from \S+ import (\w+) as \1$", inspect.getsource(public), re.MULTILINE)
    assert sorted(imports) == sorted(public.__all__)


@pytest.mark.parametrize(("modules", "heavy"), [(PUBLIC, HEAVY), (("sbpair.syphon",), {"aiohttp", "azure"})])
def test_an_import_loads_nothing_heavy(modules: tuple[str, ...], heavy: set[str]) -> None:
    program = f"import {', '.join(modules)}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert {name for name in loaded if name in heavy or name.partition(".")[0] in heavy} == set()


def test_aio_names_are_the_async_variants() -> None:
    import sbpair
    from sbpair import aio

    assert [name for name in aio.__all__ if getattr(aio, name) is getattr(sbpair, name)] == []
    assert all(getattr(aio, name).__name__ == f"Async{name}" for name in aio.__all__)
