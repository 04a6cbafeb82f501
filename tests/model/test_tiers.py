"""What each tier lets an entity be, and what its size means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import ServiceRefused, UsageError
from sbpair.model import tiers
from sbpair.model.tiers import BASIC, PREMIUM, STANDARD, TIERS, Capacity

every_tier = st.sampled_from(TIERS)


@pytest.mark.parametrize("size", [-1, 0, 6, 10, 20, 40, 80, 81920, 2**70])
def test_an_error_for_standard_states_effective_sizes(size) -> None:
    with pytest.raises(UsageError, match=f"in contoso cannot have {size} GB") as refused:
        tiers.check_size(size, (STANDARD,), " in contoso")
    assert refused.value.hint == "choose 1, 2, 3, 4 or 5: it has 16 partitions of that size, and 5 makes 80 GB"


@pytest.mark.parametrize("size", [-80, 0, 6, 7, 8, 9, 11, 16, 30, 79, 81, 160, 1024])
def test_an_invalid_size_is_refused(size) -> None:
    with pytest.raises(UsageError, match=f"a queue or topic cannot have {size} GB") as refused:
        tiers.check_size(size)
    assert refused.value.hint == (
        "choose 1, 2, 3, 4 or 5, which Standard has 16 times; on Premium also 10, 20, 40 or 80"
    )


@pytest.mark.parametrize(("tier", "effective"), [(STANDARD, 81_920), (BASIC, 81_920), (PREMIUM, 5_120)])
def test_partitions_multiply_the_size_except_in_premium(tier, effective) -> None:
    assert tiers.effective_megabytes(tier, 5_120, partitioned=True) == effective
    assert tiers.effective_megabytes(tier, 5_120, partitioned=False) == 5_120


@given(every_tier, st.data(), st.booleans())
def test_an_effective_size_converts_to_the_chosen_one(tier, data, partitioned) -> None:
    megabytes = data.draw(st.sampled_from(tier.sizes_gb)) * tiers.MEGABYTES
    effective = tiers.effective_megabytes(tier, megabytes, partitioned=partitioned)
    assert tiers.chosen_megabytes(tier, effective, partitioned=partitioned) == megabytes


@pytest.mark.parametrize(
    ("partitioned", "units", "possible"),
    [
        (False, 4, (1,)),
        (True, 1, (1,)),
        (None, 1, (1,)),
        (None, None, (1, 2, 4)),
        (None, 2, (1, 2)),
        (None, 16, (1, 2, 4)),
        (True, 2, (2,)),
        (True, 4, (2, 4)),
        (True, None, (2, 4)),
        (True, 3, (1,)),
    ],
)
def test_a_premium_namespace_divides_its_messaging_units(partitioned, units, possible) -> None:
    assert tiers.partitions_possible(Capacity(PREMIUM, units), partitioned=partitioned) == possible


@given(st.sampled_from([BASIC, STANDARD]), st.booleans(), st.none() | st.integers(1, 16))
def test_other_tiers_have_sixteen_partitions_or_one(tier, partitioned, units) -> None:
    capacity = Capacity(tier, units, units)
    assert tiers.partitions_possible(capacity, partitioned=partitioned) == ((16,) if partitioned else (1,))


@pytest.mark.parametrize("partitioned", [None, True, False])
@pytest.mark.parametrize("told", [1, 2, 4])
def test_a_known_number_of_partitions_is_used(partitioned, told) -> None:
    assert tiers.partitions_possible(Capacity(PREMIUM, 4, told), partitioned=partitioned) == (told,)


@given(st.none() | st.booleans(), st.none() | st.integers(1, 64))
def test_some_number_of_partitions_is_always_possible(partitioned, units) -> None:
    possible = tiers.partitions_possible(Capacity(PREMIUM, units), partitioned=partitioned)
    assert possible
    assert set(possible) <= {1, 2, 4}


@pytest.mark.parametrize("name", ["standard", "Standard", "STANDARD"])
def test_a_tier_is_known_by_its_name(name) -> None:
    assert tiers.tier_named(name) is STANDARD


@pytest.mark.parametrize("name", ["", "None", "Gold", "Standard "])
def test_an_unknown_tier_is_refused(name) -> None:
    with pytest.raises(ServiceRefused, match="the unknown tier"):
        tiers.tier_named(name)
