"""The sampling rule against a from-scratch twin, its two paths against each other, and its floating-point edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.kernels.philox import token_bits
from frostline.runner.sampling import SamplingRows, choose, gumbel, perturb, process
from tests.sampling import reference
from tests.sampling.toy import sampling_rows
from tests.sampling.watch import HOST_READS, Watch

DTYPES = [torch.float32, torch.float64]
# Halves, so that ties abound and no gap is the logarithm of a min_p below.
COARSE = st.integers(-6, 6).map(lambda half: half / 2)
PARAMS = st.tuples(
    st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.9]),
    st.sampled_from([0, 1, 2, 3, 5, 50]),
    st.sampled_from([1.0, 0.99, 0.9, 0.73, 0.41, 0.07]),
    st.sampled_from([0.0, 0.04, 0.3, 0.9]),
)
Params = tuple[float, int, float, float]


def rows_of(params: list[Params], dtype: torch.dtype) -> SamplingRows:
    temperature, top_k, top_p, min_p = zip(*params, strict=True)
    return SamplingRows(
        temperature=torch.tensor(temperature, dtype=dtype),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p, dtype=dtype),
        min_p=torch.tensor(min_p, dtype=dtype),
        seed=torch.arange(len(params)) * 7919,
    )


def one(values: list[float], dtype: torch.dtype = torch.float64, **params: float) -> set[int]:
    rows = sampling_rows(torch.tensor([1]), dtype=dtype, **params)  # type: ignore[arg-type]
    return set(process(torch.tensor([values], dtype=dtype), rows)[0].isfinite().nonzero().flatten().tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), params=st.lists(PARAMS, min_size=1, max_size=6), width=st.integers(1, 12))
def test_filters_equal_the_reference(dtype: torch.dtype, data: st.DataObject, params: list[Params], width: int) -> None:
    values = data.draw(st.lists(st.lists(COARSE, min_size=width, max_size=width), min_size=6, max_size=6))
    logits = torch.tensor(values, dtype=dtype)[: len(params)]
    got = process(logits, rows_of(params, dtype))
    for row, (temperature, top_k, top_p, min_p) in enumerate(params):
        if temperature == 0:
            assert torch.equal(got[row], logits[row])
            continue
        tempered = logits[row] / torch.tensor(temperature, dtype=dtype)
        kept = reference.keep(tempered.tolist(), top_k, top_p, min_p)
        expected = torch.full_like(tempered, -math.inf)
        expected[list(kept)] = tempered[list(kept)]
        assert torch.equal(got[row], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), params=st.lists(PARAMS, min_size=1, max_size=6), width=st.integers(1, 70), coarse=st.booleans())
def test_the_bounded_path_is_the_general_path_bit_for_bit(
    dtype: torch.dtype, data: st.DataObject, params: list[Params], width: int, coarse: bool
) -> None:
    """With ties beyond the bound too: coarse logits tie far past rank top_k."""
    params = [(t, k if k or p == 1 else 4, p, m) for t, k, p, m in params]
    bound = max([1, *(k for _, k, _, _ in params)]) + data.draw(st.integers(0, 3))
    logits = torch.randn(len(params), width, dtype=dtype, generator=torch.Generator().manual_seed(width)) * 2
    logits = logits.round() if coarse else logits
    rows = rows_of(params, dtype)
    assert torch.equal(process(logits, rows, max_top_k=bound), process(logits, rows))
    position = torch.arange(len(params)) + 11
    bounded, general = (
        perturb(logits, rows, position, sampled=True, filtered=True, max_top_k=limit) for limit in (bound, 0)
    )
    assert torch.equal(bounded, general)


def test_both_paths_agree_on_a_real_vocabulary() -> None:
    rng = torch.Generator().manual_seed(3)
    logits = torch.randn(40, 4096, generator=rng) * 3
    logits[20:] = (logits[20:] * 4).round() / 4
    rows = sampling_rows(torch.arange(40), 1.5, 64, 0.99, 0.001)
    kept = process(logits, rows, max_top_k=64)
    assert torch.equal(kept, process(logits, rows))
    assert torch.equal(kept, process(logits, rows, max_top_k=1000))
    assert int(kept[20:].isfinite().sum(dim=-1).max()) > 64


def test_a_row_does_not_depend_on_its_company() -> None:
    logits = torch.randn(7, 333, generator=torch.Generator().manual_seed(5)) * 3
    rows = rows_of(
        [(1.0, 0, 0.9, 0.0), (0.0, 0, 1.0, 0.0), (0.7, 20, 0.9, 0.04)] * 2 + [(1.9, 5, 0.41, 0.0)], logits.dtype
    )
    position = torch.arange(7) * 3
    together = perturb(logits, rows, position, sampled=True, filtered=True)
    for i in range(7):
        row = SamplingRows(**{name: getattr(rows, name)[i : i + 1] for name in SamplingRows.__dataclass_fields__})
        alone = perturb(logits[i : i + 1], row, position[i : i + 1], sampled=True, filtered=True)
        assert torch.equal(alone[0], together[i])


def test_ties_at_each_threshold_are_kept() -> None:
    assert one([3.0, 1.0, 1.0, 1.0, 0.0], top_k=2) == {0, 1, 2, 3}
    quarter = [math.log(w) for w in (0.5, 0.25, 0.125, 0.125)]
    assert one(quarter, top_p=0.49) == {0}
    assert one(quarter, top_p=0.51) == {0, 1}
    assert one(quarter, top_p=0.80) == {0, 1, 2, 3}
    assert one([0.0, math.log(0.5), math.log(0.25), math.log(0.5)], min_p=0.5) == {0, 1, 3}


def test_the_smallest_set_reaches_top_p_exactly() -> None:
    """Half the mass is enough for top_p 0.5, at equal and at unequal values."""
    assert one([0.0, -800.0, -801.0], top_p=0.5) == {0}
    assert one([1.0, 1.0, -900.0], top_p=0.5) == {0, 1}


def test_top_p_is_taken_of_what_top_k_left() -> None:
    weights = [math.log(w) for w in (0.4, 0.3, 0.2, 0.1)]
    assert one(weights, top_p=0.55) == {0, 1}
    # 0.4 of the remaining 0.7 is 57%.
    assert one(weights, top_k=2, top_p=0.55) == {0}


def test_temperature_comes_before_top_p() -> None:
    weights = [math.log(w) for w in (0.6, 0.3, 0.1)]
    assert one(weights, top_p=0.7) == {0, 1}
    assert one(weights, temperature=0.5, top_p=0.7) == {0}


def test_masked_logits_never_come_back() -> None:
    values = [1.0, -math.inf, 0.0, -math.inf]
    assert one(values) == one(values, top_k=3) == one(values, top_k=3, top_p=0.999) == {0, 2}
    assert one([-math.inf, 2.0, -math.inf], top_k=2, top_p=0.5, min_p=0.1) == {1}


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_temperatures_stay_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[29.0, 30.0, -30.0, 30.0 - 2**-10]], dtype=dtype)
    for temperature in (1e-38, 1e-20, 1e-4):
        rows = sampling_rows(torch.tensor([3]), temperature, top_k=3, top_p=0.9, dtype=dtype)
        score = perturb(logits, rows, torch.tensor([5]), sampled=True, filtered=True)
        assert int(choose(score)) == 1
        assert not score.isnan().any()
    hot = process(logits, sampling_rows(torch.tensor([3]), 1e30, dtype=dtype))
    assert hot.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**34), start=st.integers(0, 300000))
def test_noise_equals_the_reference(dtype: torch.dtype, seed: int, position: int, start: int) -> None:
    got = gumbel(torch.tensor([seed]), torch.tensor([position]), range(start, start + 9), dtype)
    assert got.dtype == dtype
    expected = [reference.noise(seed, position, token) for token in range(start, start + 9)]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(
        got[0].double(), torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 37), count=st.integers(1, 500), rows=st.integers(1, 4))
def test_noise_of_a_token_does_not_depend_on_the_list(dtype: torch.dtype, start: int, count: int, rows: int) -> None:
    """Equal to the last bit wherever the token stands: vectorised logarithms treat every lane and tail alike."""
    seed, position = torch.arange(rows) + 2**40, torch.arange(rows) * 5
    whole = gumbel(seed, position, range(600), dtype)
    part = whole[:, start : start + count]
    assert torch.equal(gumbel(seed, position, range(start, start + count), dtype), part)
    ids = torch.arange(start, start + count)
    assert torch.equal(gumbel(seed, position, ids, dtype), part)
    assert torch.equal(gumbel(seed, position, ids.flip(0).repeat(rows, 1), dtype), part.flip(1))


def test_23_bit_uniforms_stay_below_one_where_32_bits_do_not() -> None:
    """A draw that exists: seed 0, position 2349, token 10328 has the 32 bits 0xFFFFFFC9."""
    seed, position, token = torch.tensor([0]), torch.tensor([2349]), torch.tensor([10328])
    bits = token_bits(seed, position, token)
    assert int(bits) == 0xFFFFFFC9
    wide = (bits.float() + 0.5) / 2.0**32
    assert float(wide) == 1.0
    assert float(-(-wide.log()).log()) == math.inf
    for dtype in DTYPES:
        ours = float(gumbel(seed, position, token, dtype))
        assert ours == pytest.approx(-math.log(-math.log1p(-(2.0**-24))), rel=1e-6)
    lowest, highest = torch.tensor([0.5, 2**23 - 0.5], dtype=torch.float32) * 2.0**-23
    assert 0 < float(lowest) < float(highest) < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_rows_are_untouched_in_a_mixed_batch(dtype: torch.dtype) -> None:
    logits = torch.randn(4, 50, dtype=dtype, generator=torch.Generator().manual_seed(1))
    rows = rows_of([(0.0, 3, 0.5, 0.3), (1.0, 3, 0.5, 0.0), (0.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0)], dtype)
    position = torch.arange(4)
    for filtered in (True, False):
        score = perturb(logits, rows, position, sampled=True, filtered=filtered)
        assert torch.equal(score[[0, 2]], logits[[0, 2]])
        assert not torch.equal(score[[1, 3]], logits[[1, 3]])
    assert perturb(logits, rows, position, sampled=False, filtered=True) is logits


@pytest.mark.parametrize("dtype", DTYPES)
def test_perturb_is_filtered_logits_plus_noise(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 40, dtype=dtype, generator=torch.Generator().manual_seed(2))
    rows = rows_of([(1.0, 5, 1.0, 0.0), (0.7, 0, 0.73, 0.0), (1.9, 0, 1.0, 0.3)], dtype)
    position = torch.tensor([5, 900, 77])
    noise = gumbel(rows.seed, position, range(40), dtype)
    whole = perturb(logits, rows, position, sampled=True, filtered=True)
    assert torch.equal(whole, process(logits, rows) + noise)
    bare = perturb(logits, rows, position, sampled=True, filtered=False)
    assert torch.equal(bare, logits / rows.temperature[:, None] + noise)

    # A draft head names its candidates: each meets the noise of its own token id.
    ids = torch.stack([torch.randperm(5000, generator=torch.Generator().manual_seed(i))[:40] for i in range(3)])
    by_id = gumbel(rows.seed, position, range(5000), dtype).gather(1, ids)
    assert torch.equal(perturb(logits, rows, position, ids, sampled=True, filtered=True), process(logits, rows) + by_id)


def test_choose_takes_the_lowest_index_of_equals() -> None:
    score = torch.tensor([[1.0, 3.0, 3.0, 0.0], [-math.inf] * 4, [2.0, 2.0, 2.0, 2.0]])
    assert choose(score).tolist() == [1, 0, 0]
    wide = torch.zeros(3, 5000)
    wide[:, [4999, 77, 3000]] = 1.0
    assert choose(wide).tolist() == [77] * 3


def test_repeat_keeps_the_nodes_of_a_request_together() -> None:
    rows = rows_of([(0.5, 2, 0.9, 0.1), (1.0, 7, 0.73, 0.04)], torch.float64).repeat(3)
    assert rows.temperature.tolist() == [0.5] * 3 + [1.0] * 3
    assert rows.top_k.tolist() == [2] * 3 + [7] * 3
    assert rows.top_p.tolist() == [0.9] * 3 + [0.73] * 3
    assert rows.min_p.tolist() == [0.1] * 3 + [0.04] * 3
    assert rows.seed.tolist() == [0] * 3 + [7919] * 3


@pytest.mark.parametrize("max_top_k", [0, 8])
def test_nothing_is_read_back_and_no_float32_enters_a_float64_row(max_top_k: int) -> None:
    logits = torch.randn(3, 40, dtype=torch.float64)
    rows = rows_of([(1.0, 5, 0.9, 0.04), (0.0, 0, 1.0, 0.0), (1.9, 8, 0.73, 0.3)], torch.float64)
    with Watch() as watch:
        score = perturb(logits, rows, torch.arange(3), sampled=True, filtered=True, max_top_k=max_top_k)
        choose(score)
    assert torch.float64 in watch.dtypes
    assert not watch.dtypes & {torch.float32, torch.float16, torch.bfloat16}
    assert not watch.operations & HOST_READS


def test_logits_and_rows_of_different_dtypes_are_our_own_mistake() -> None:
    rows = sampling_rows(torch.tensor([1]), dtype=torch.float32)
    with pytest.raises(AssertionError):
        perturb(torch.zeros(1, 4, dtype=torch.float64), rows, torch.tensor([0]), sampled=True, filtered=True)


def test_a_row_of_nan_does_not_disturb_its_neighbours() -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(9))
    rows = sampling_rows(torch.arange(3), 0.9, 5, 0.9)
    clean = perturb(logits, rows, torch.arange(3), sampled=True, filtered=True)
    logits[1, 4] = math.nan
    for bound in (0, 5):
        score = perturb(logits, rows, torch.arange(3), sampled=True, filtered=True, max_top_k=bound)
        assert torch.equal(score[[0, 2]], clean[[0, 2]])
        assert 0 <= int(choose(score)[1]) < 30


@pytest.mark.gpu
def test_the_gpu_draws_the_same_bits_and_never_waits() -> None:
    rng = torch.Generator().manual_seed(4)
    logits = torch.randn(32, 5000, generator=rng, dtype=torch.float64) * 3
    rows = sampling_rows(torch.arange(32) + 2**45, 0.8, 64, 0.95, 0.01, dtype=torch.float64)
    position = torch.arange(32) * 1000
    there = SamplingRows(**{name: getattr(rows, name).cuda() for name in SamplingRows.__dataclass_fields__})
    logits_there, position_there = logits.cuda(), position.cuda()
    bits = token_bits(there.seed, position_there, range(5000))
    assert torch.equal(bits.cpu(), token_bits(rows.seed, position, range(5000)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        scores = [
            perturb(logits_there, there, position_there, sampled=True, filtered=True, max_top_k=bound)
            for bound in (0, 64, 200)
        ]
        chosen = [choose(score) for score in scores]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])
    expected = perturb(logits, rows, position, sampled=True, filtered=True)
    torch.testing.assert_close(scores[0].cpu(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(chosen[0].cpu(), choose(expected))
