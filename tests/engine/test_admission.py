"""What is refused on arrival, with the remedy, and what waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frostline.engine.admission import Admission, Limits, RowAllocator
from frostline.errors import RequestError
from frostline.types import GROUPS, Group, SamplingParams
from tests.engine.fake_executor import FakeExecutor, scripted
from tests.engine.harness import PROMPT, engine_on, run
from tests.text.byte_level import byte_ids

(A,) = byte_ids("a")


def device(**options: object) -> FakeExecutor:
    return FakeExecutor(scripted([A], len(PROMPT)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "the prompt is empty; give at least one token"),
        ([A] * 64, SamplingParams(), "64 tokens and the context holds 64.*shorten the prompt or raise max_model_len"),
        ([A, 10_000], SamplingParams(), "token id 10000, outside the vocabulary of .*another model's tokenizer"),
        ([A, -1], SamplingParams(), "token id -1, outside the vocabulary"),
        ([A], SamplingParams(stop_token_ids=(99_999,)), "stop_token_ids holds token id 99999"),
        ([A], SamplingParams(num_steps=5), "num_steps 5 .* over the engine's 4; lower it or load"),
    ],
)
def test_what_can_never_run_is_refused_at_once(prompt: list[int], params: SamplingParams, message: str) -> None:
    engine = engine_on(device())
    with pytest.raises(RequestError, match=message) as refused:
        engine.request(prompt, params)
    assert "\n" not in str(refused.value)
    assert engine.loop.is_idle


def test_what_never_fits_the_pages_is_refused() -> None:
    small = device(num_pages={"sliding": 8, "full": 6}, page_size=4)  # 5 pages: 20 rows, 10 of them for drafts
    engine = engine_on(small)
    with pytest.raises(RequestError, match=r"needs 6 KV pages of 4 rows .3 prompt tokens, 8 new ones, 10 for drafts"):
        engine.request(PROMPT, SamplingParams(max_tokens=8))
    output = run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=7))])[0]
    assert len(output.outputs[0].token_ids) == 7


@pytest.mark.parametrize("max_tokens", [None, 61, 62, 1000])
def test_the_context_ends_a_request_with_length(max_tokens: int | None) -> None:
    engine = engine_on(device(max_context=64))
    output = run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=max_tokens))])[0]
    assert len(PROMPT) + len(output.outputs[0].token_ids) == 64
    assert output.outputs[0].finish_reason == "length"


def test_the_longest_prompt_gets_one_token() -> None:
    engine = engine_on(FakeExecutor(scripted([A], 63), max_context=64))
    output = run(engine, [engine.request([A] * 63, SamplingParams(max_tokens=5))])[0]
    assert output.outputs[0].token_ids == (A,)


def test_reported_41_pressure_queues_and_never_fails() -> None:
    small = device(num_pages={"sliding": 9, "full": 9}, page_size=4, num_rows=9)  # two requests at a time
    engine = engine_on(small)
    requests = [engine.request(PROMPT, SamplingParams(max_tokens=3)) for _ in range(7)]
    outputs = run(engine, requests)
    assert all(output.outputs[0].token_ids == (A,) * 3 for output in outputs)
    assert max(len(step.rows) + len(step.prefill) for step in small.steps) == 2


NO_PROMISE: dict[Group, int] = {"sliding": 0, "full": 0}


def test_a_refused_head_takes_nothing() -> None:
    limits = Limits(max_context=64, margin=10, page_size=4, pages={"sliding": 19, "full": 5}, window=24, max_steps=4)
    admission = Admission(limits, num_rows=4, num_pages={"sliding": 20, "full": 6})
    engine = engine_on(device())
    first, second = (engine.request(PROMPT, SamplingParams(max_tokens=7)) for _ in range(2))
    assert admission.admit(first, promised=NO_PROMISE)
    admission.pages.grow(first.on_device, 8)
    assert {group: first.on_device.num_held(group) for group in GROUPS} == {"sliding": 2, "full": 2}
    assert not admission.admit(second, promised=NO_PROMISE) and second.row == 0 and second.stay is None
    admission.check([first])
    admission.leave(first)
    with pytest.raises(AssertionError):
        admission.leave(first)
    admission.check([])


def test_what_others_were_admitted_for_is_not_given_out_again() -> None:
    limits = Limits(max_context=64, margin=10, page_size=4, pages={"sliding": 19, "full": 7}, window=24, max_steps=4)
    admission = Admission(limits, num_rows=4, num_pages={"sliding": 20, "full": 8})
    request = engine_on(device()).request(PROMPT, SamplingParams(max_tokens=7))
    assert not admission.admit(request, promised={"sliding": 0, "full": 4})
    assert not admission.admit(request, promised={"sliding": 16, "full": 0})
    assert admission.admit(request, promised={"sliding": 15, "full": 3})


@pytest.mark.parametrize(
    ("window", "margin", "page_size", "pages"), [(24, 10, 4, 10), (1, 2, 1, 3), (1, 2, 16, 2), (512, 10, 16, 34)]
)
def test_the_sliding_group_needs_no_more_than_a_window_can_be_spread_over(
    window: int, margin: int, page_size: int, pages: int
) -> None:
    limits = Limits(
        max_context=9999,
        margin=margin,
        page_size=page_size,
        pages={"sliding": pages, "full": 9999},
        window=window,
        max_steps=4,
    )
    # Rows [committed - W, committed + 2 N), wherever the pages' borders fall.
    spread = {
        -(-(committed + margin) // page_size) - (committed - window) // page_size
        for committed in range(window, window + 9 * page_size)
    }
    assert limits.needs(9000)["sliding"] == max(spread) == pages
    assert limits.needs(1) == dict.fromkeys(GROUPS, -(-(1 + margin) // page_size))
    limits.check([1] * 5000, SamplingParams(max_tokens=4000))
    fewer = replace(limits, pages={"sliding": pages - 1, "full": 9999})
    with pytest.raises(RequestError, match=r"in the sliding layers .* raise kv_pages or sliding_kv_pages"):
        fewer.check([1] * 5000, SamplingParams(max_tokens=4000))


def test_rows_are_given_lowest_first_and_freed_once() -> None:
    rows = RowAllocator(4)
    assert [rows.allocate() for _ in range(3)] == [1, 2, 3]
    rows.release(2)
    for wrong in (2, 0, 4):
        with pytest.raises(AssertionError):
            rows.release(wrong)
    assert rows.allocate() == 2
