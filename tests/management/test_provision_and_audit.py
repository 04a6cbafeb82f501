"""Provision and audit of a pair on the emulator, from an empty namespace to a sound one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sbpair import errors
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription
from sbpair.management.audit_findings import audit_exit_code
from sbpair.management.auditing import audit
from sbpair.management.provisioning import EntityReport, provision, provision_exit_code
from sbpair.model.pair import SasKey, SasToken
from sbpair.model.queues import Difference
from sbpair.model.report import Outcome
from sbpair.testing import Emulator
from tests.kit.pairs import pair_on
from tests.kit.waiting import no_wait

FIRST = "contoso/x-servicebus-transfer/0"
TICKS_A_SECOND = 10_000_000


def names(report: EntityReport, outcome: Outcome) -> list[str]:
    return [item.name.rsplit("/", 1)[1] for item in report.of(outcome)]


async def test_provisioned_queues_have_the_old_description_and_pass_audit() -> None:
    async with Emulator() as emulator:
        report = await provision(pair_on(emulator, 12))
        assert names(report, Outcome.CREATED) == [str(index) for index in range(12)]
        found = emulator.namespaces["contoso-dr"].queue(FIRST).description
        assert found == QueueDescription(
            lock_duration=60 * TICKS_A_SECOND,
            max_size_in_megabytes=5120,
            default_message_time_to_live=2**63 - 1,
            dead_lettering_on_message_expiration=True,
            max_delivery_count=2**31 - 1,
            enable_batched_operations=True,
            auto_delete_on_idle=2**63 - 1,
        )
        again = await provision(pair_on(emulator, 12))
        assert len(again.of(Outcome.EXISTING)) == 12
        assert audit_exit_code(await audit(pair_on(emulator, 12))) == 0
        assert emulator.namespaces["contoso"].queues() == []


async def test_concurrent_provision_runs_both_succeed() -> None:
    async with Emulator() as emulator:
        pair = pair_on(emulator, 10)
        reports = await asyncio.gather(*(provision(pair, sleep=no_wait) for _ in range(3)))
        assert all(provision_exit_code(report, strict=True) == 0 for report in reports)
        assert sum(len(report.of(Outcome.CREATED)) for report in reports) == 10


async def test_drift_is_reported_and_never_changed() -> None:
    async with Emulator() as emulator:
        namespace = emulator.namespaces["contoso-dr"]
        namespace.create_queue(FIRST, QueueDescription(max_delivery_count=10))
        before = namespace.queue(FIRST).description
        [drifted] = (await provision(pair_on(emulator))).of(Outcome.DRIFTED)
        assert drifted.detail
        assert Difference("MaxDeliveryCount", 2147483647, 10) in drifted.detail.differences
        assert Difference("MaxSizeInMegabytes", 5120, 1024) in drifted.detail.differences
        assert namespace.queue(FIRST).description == before


async def test_partitioned_queue_is_reported_and_is_no_drift() -> None:
    async with Emulator() as emulator:
        await provision(pair_on(emulator, 1))
        namespace = emulator.namespaces["contoso-dr"]
        right = namespace.queue(FIRST).description
        namespace.delete_queue(FIRST)
        namespace.create_queue(FIRST, replace(right, enable_partitioning=True))
        [item] = await audit(pair_on(emulator, 1))
        assert item.outcome is Outcome.OK
        assert item.detail
        assert item.detail.partitioned


async def test_a_wrong_key_is_not_accepted() -> None:
    async with Emulator() as emulator:
        wrong = pair_on(emulator, credential=SasKey("RootManageSharedAccessKey", "wrong"))
        with pytest.raises(errors.NotAuthenticated):
            await provision(wrong, sleep=no_wait)


async def test_an_expired_token_is_not_accepted() -> None:
    async with Emulator() as emulator:
        token = "SharedAccessSignature sr=https%3A%2F%2F127.0.0.1&sig=x&se=1&skn=RootManageSharedAccessKey"
        with pytest.raises(errors.NotAuthenticated):
            await audit(pair_on(emulator, credential=SasToken(token)), sleep=no_wait)


async def test_key_without_manage_creates_nothing() -> None:
    async with Emulator() as emulator:
        namespace = emulator.namespaces["contoso-dr"]
        namespace.keys = (AuthorizationRule("listen", "key", "other", frozenset({AccessRight.LISTEN})),)
        with pytest.raises(errors.NotAuthorized) as caught:
            await provision(pair_on(emulator, credential=SasKey("listen", "key")), sleep=no_wait)
        assert "Manage" in caught.value.hint
        assert namespace.queues() == []


async def test_provision_works_after_an_outage() -> None:
    async with Emulator() as emulator:
        outage = emulator.faults.namespace_down("contoso-dr")
        with pytest.raises(errors.Unavailable):
            await provision(pair_on(emulator), sleep=no_wait)
        emulator.faults.end(outage)
        assert names(await provision(pair_on(emulator)), Outcome.CREATED) == ["0", "1", "2"]
