"""Signals while Spark starts."""

from __future__ import annotations

import signal

import pytest

from sbpair.operating_system.signals import handlers_kept


def test_a_signal_while_spark_starts_takes_effect_afterwards() -> None:
    steps = []

    def start() -> None:
        with handlers_kept():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]


def test_an_ignored_signal_stays_ignored_after_spark_has_started() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handlers_kept():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
