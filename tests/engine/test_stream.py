"""Streams, aborts and several samples on the fake device side: pieces add up, ends are clean, nothing stays behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from frostline import RequestError, RequestOutput, SamplingParams, SpeculativeConfig, StreamOutput
from frostline.config import EngineConfig, Schedule
from frostline.engine.engine import sample_seed
from frostline.llm import LLM
from frostline.speculative.step import Executor, Step, StepResult
from frostline.speculative.worker import WorkerExecutor
from frostline.text.generation import GenerationDefaults
from frostline.types import GROUPS
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.text.byte_level import EOS, byte_ids, byte_level

SCHEDULES: tuple[Schedule, ...] = ("sync", "overlap")
# One token per byte: every character past ASCII is split over several tokens.
TEXTS = byte_ids("aé€😀b ")
LONG = SamplingParams(max_tokens=40, seed=3, ignore_eos=True)


def llm_on(
    schedule: Schedule = "overlap", wrap: Callable[[FakeExecutor], Executor] = Lagging, **device: Any
) -> tuple[LLM, FakeExecutor]:
    fake = FakeExecutor(hashed(device.pop("choices", TEXTS)), **device)
    llm = LLM.from_executor(
        wrap(fake),
        tokenizer=byte_level(),
        speculative=SpeculativeConfig(),
        engine=EngineConfig(schedule=schedule),
        defaults=GenerationDefaults(eos_token_ids=(EOS,)),
        vocab_size=byte_level().vocab_size,
    )
    return llm, fake


def owned(llm: LLM) -> int:
    return sum(llm._engine._admission.pages.allocators[group].num_owned for group in GROUPS)


def assert_clean(llm: LLM) -> None:
    assert llm._engine.loop.is_idle and owned(llm) == 0
    llm._engine.loop.check()
    assert len(llm.generate([40], LONG)[0].outputs[0].token_ids) == 40


def joined(pieces: Sequence[StreamOutput], prompt: int, index: int) -> tuple[str, tuple[int, ...]]:
    own = [piece for piece in pieces if (piece.prompt_index, piece.index) == (prompt, index)]
    assert [piece.finish_reason is not None for piece in own] == [False] * (len(own) - 1) + [True]
    return "".join(piece.text for piece in own), tuple(token for piece in own for token in piece.token_ids)


def assert_adds_up(pieces: Sequence[StreamOutput], expected: Sequence[RequestOutput]) -> None:
    for number, output in enumerate(expected):
        for completion in output.outputs:
            assert joined(pieces, number, completion.index) == (completion.text, completion.token_ids)
        (whole,) = (piece.output for piece in pieces if piece.prompt_index == number and piece.output is not None)
        assert (whole.outputs, whole.seed, whole.prompt_token_ids) == (
            output.outputs,
            output.seed,
            output.prompt_token_ids,
        )
        assert whole.stats == output.stats


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(30))
def test_reported_38_a_stream_adds_up_to_the_text_and_never_splits_a_character(schedule: Schedule, seed: int) -> None:
    draw = random.Random(seed)
    choices = byte_ids("".join(draw.sample("aé€😀b 한國\u200d", 4))) + [EOS] * (seed % 3)

    def accept(most: int) -> int:
        return draw.randint(0, most)

    params = [
        SamplingParams(
            max_tokens=draw.randint(1, 40),
            seed=n,
            stop=draw.choice(((), ("ab",), ("€", "b a"), ("😀",), ("aé", "é€"))),
            include_stop_str_in_output=draw.random() < 0.3,
            stop_token_ids=draw.choice(((), (choices[0],))),
        )
        for n in range(4)
    ]
    prompts = [[40 + n] for n in range(4)]
    pieces = list(llm_on(schedule, choices=choices, accept=accept)[0].stream(prompts, params))
    expected = llm_on("sync", choices=choices, accept=lambda most: 0)[0].generate(prompts, params)
    for number, output in enumerate(expected):
        assert joined(pieces, number, 0) == (output.outputs[0].text, output.outputs[0].token_ids)
    for piece in pieces:
        # Half a character shows as U+FFFD; only an output that ends inside one has it, in its last piece.
        assert "\ufffd" not in piece.text or piece.finish_reason is not None or broken(choices)


def broken(choices: Sequence[int]) -> bool:
    """Random bytes are rarely UTF-8, and then the whole text has U+FFFD: these mixes check the sums alone."""
    return any(byte_level().decode([token]) == "\ufffd" for token in choices)


@pytest.mark.parametrize("accepted", range(5))
def test_reported_38_whole_characters_only(accepted: int) -> None:
    text = "né 한국어 €5 👩‍🚀 完了 😀!"
    tokens = byte_ids(text)
    fake = FakeExecutor(
        lambda seed, position, history: tokens[position - 1] if position <= len(tokens) else EOS,
        accept=lambda most: min(most, accepted),
        max_context=200,
    )
    llm = LLM.from_executor(
        Lagging(fake),
        tokenizer=byte_level(),
        speculative=SpeculativeConfig(),
        engine=EngineConfig(schedule="overlap"),
        defaults=GenerationDefaults(eos_token_ids=(EOS,)),
    )
    pieces = list(llm.stream([40], SamplingParams(max_tokens=None)))
    assert "".join(piece.text for piece in pieces) == text
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert all(text.startswith("".join(piece.text for piece in pieces[:count])) for count in range(len(pieces)))
    stopped = list(llm.stream([40], SamplingParams(max_tokens=None, stop="完了 😀")))
    assert "".join(piece.text for piece in stopped) == text[: text.index("完了")]
    assert stopped[-1].stop_reason == "完了 😀" and stopped[-1].finish_reason == "stop"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stream_gives_what_generate_gives(schedule: Schedule) -> None:
    params = [SamplingParams(max_tokens=n, seed=n, n=1 + n % 3) for n in (1, 7, 12, 30)]
    prompts = ["a", "bc", [40, 41], "the end"]
    pieces = list(llm_on(schedule)[0].stream(prompts, params))
    assert_adds_up(pieces, llm_on(schedule)[0].generate(prompts, params))
    # Piece by piece: a run at a time, the requests in turns.
    assert max(len(piece.token_ids) for piece in pieces) <= 5
    assert len({piece.request_id for piece in pieces}) == 4


def test_nothing_runs_before_the_first_item_and_bad_input_is_refused_at_once() -> None:
    llm, device = llm_on()
    stream = llm.stream([40], LONG)
    assert device.steps == [] and llm._engine.loop.is_idle
    with pytest.raises(RequestError, match="prompt 2 of 2: the prompt is empty"):
        llm.stream(["a", ""])
    stream.close()
    assert_clean(llm)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_closing_a_stream_aborts_what_is_left(schedule: Schedule) -> None:
    llm, _ = llm_on(schedule)
    stream = llm.stream([[40], [41]], LONG)
    for _ in range(3):
        next(stream)
    assert owned(llm) > 0
    stream.close()
    assert_clean(llm)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_abort_between_two_items_frees_within_one_tick(schedule: Schedule) -> None:
    llm, device = llm_on(schedule)
    stream = llm.stream([[40], [41]], LONG, request_ids=["first", "second"])
    pieces = [next(stream) for _ in range(4)]
    before = owned(llm)
    assert llm.abort("first") and not llm.abort("third")
    steps = len(device.steps)
    pieces.append(next(stream))
    assert len(device.steps) <= steps + 1
    assert owned(llm) <= before // 2 + 2
    pieces += stream
    assert not llm.abort("first") and not llm.abort("second")
    ends = {piece.request_id: piece.finish_reason for piece in pieces if piece.finish_reason is not None}
    assert ends == {"first": "abort", "second": "length"}
    text, ids = joined(pieces, 0, 0)
    (whole,) = (piece.output for piece in pieces if piece.prompt_index == 0 and piece.output is not None)
    assert (whole.outputs[0].text, whole.outputs[0].token_ids) == (text, ids) and 0 < len(ids) < 40
    assert_clean(llm)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_abort_from_another_thread_frees_within_one_tick(schedule: Schedule) -> None:
    """The device side aborts in the middle of a step: the tick that is running ends, the next one has it released."""
    seen: list[int] = []
    asked: list[int] = []

    class Watching(Lagging):
        def launch(self, step: Step) -> Step:
            seen.append(len(step.rows))
            if len(seen) == 5:
                thread = threading.Thread(target=lambda: asked.append(llm.abort("x")))
                thread.start()
                thread.join()
            return super().launch(step)

    llm, _ = llm_on(schedule, Watching)
    outputs = llm.generate([[40], [41]], LONG, request_ids=["x", "y"])
    assert asked == [True] and seen[4] == 2 and set(seen[5:]) <= {1, 0}
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "length"]
    assert 0 < len(outputs[0].outputs[0].token_ids) < 40
    assert_clean(llm)


def test_an_abort_that_comes_too_late_does_not_meet_the_next_of_that_name() -> None:
    class Late(FakeExecutor):
        def launch(self, step: Step) -> StepResult:
            if len(self.steps) == 1:
                assert llm.abort("x"), "it is open while its last step runs"
            return super().launch(step)

    fake = Late(hashed(TEXTS))
    llm = LLM.from_executor(fake, speculative=SpeculativeConfig(), engine=EngineConfig(schedule="sync"))
    for _ in range(2):
        (output,) = llm.generate([40], SamplingParams(max_tokens=6, ignore_eos=True), request_ids=["x"])
        assert output.outputs[0].finish_reason == "length"
    assert_clean(llm)


def test_generate_inside_a_stream_and_in_two_threads_at_once() -> None:
    llm, _ = llm_on()
    expected = llm_on("sync")[0].generate([[40], [41], [42]], LONG)
    stream = llm.stream([40], LONG)
    pieces = [next(stream)]
    found: dict[int, list[RequestOutput]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: llm.generate([n], LONG)}))  # type: ignore[misc]
        for n in (41, 42)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pieces += stream
    assert found[41][0].outputs == expected[1].outputs and found[42][0].outputs == expected[2].outputs
    assert joined(pieces, 0, 0) == (expected[0].outputs[0].text, expected[0].outputs[0].token_ids)
    assert_clean(llm)


def test_two_llms_on_one_pair_work_one_at_a_time() -> None:
    llm, _ = llm_on()
    plain = llm.with_speculative(SpeculativeConfig(num_steps=0))
    stream = llm.stream([40], LONG)
    next(stream)
    with pytest.raises(RequestError, match="finish it or close its stream first"):
        plain.generate([41], LONG)
    stream.close()
    assert plain.generate([40], LONG)[0].outputs == llm.generate([40], LONG)[0].outputs
    for schedule in SCHEDULES:
        other = llm.with_schedule(schedule)
        assert other.generate([40], LONG)[0].outputs == plain.generate([40], LONG)[0].outputs
        assert other.stats().emitted_tokens == 40


def test_ids_are_the_callers_own_and_unique() -> None:
    llm, device = llm_on()
    outputs = llm.generate([[40], [41]], LONG, request_ids=["b", "a"])
    assert [output.request_id for output in outputs] == ["b", "a"]
    for names, message in (
        (["a", "a"], "'a' is in use"),
        (["a"], "2 prompts but 1 request_ids"),
        (["a", "b#1"], "'#'"),
    ):
        steps = len(device.steps)
        with pytest.raises(RequestError, match=message):
            llm.generate([[40], [41]], LONG, request_ids=names)
        assert len(device.steps) == steps
    stream = llm.stream([40], LONG, request_ids=["a"])
    next(stream)
    with pytest.raises(RequestError, match="'a' is in use; give every request an id of its own, or none"):
        llm.generate([40], LONG, request_ids=["a"])
    stream.close()
    assert_clean(llm)


@pytest.mark.parametrize("text", [True, False])
def test_prompts_may_come_while_others_run(text: bool) -> None:
    llm, _ = llm_on()
    expected = llm_on("sync")[0].generate([[40 + n] for n in range(6)], LONG)
    live, pieces = llm.live(text=text), []
    assert live.step() == []
    for n in range(6):
        assert live.add([40 + n], LONG, request_id=f"r{n}") == n
        pieces += [piece for _ in range(3) for piece in live.step()]
    assert llm.abort("r5") or live.num_open < 6
    while live.num_open:
        pieces += live.step()
    assert_adds_up([piece for piece in pieces if piece.prompt_index < 5], expected[:5])
    assert text or {piece.text for piece in pieces if piece.finish_reason is None} == {""}
    (last,) = (piece for piece in pieces if piece.prompt_index == 5 and piece.finish_reason is not None)
    assert (last.request_id, last.finish_reason) == ("r5", "abort")
    with pytest.raises(RequestError, match="the prompt is empty"):
        live.add("")
    live.add([40], LONG)
    live.step()
    live.close()
    assert_clean(llm)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_samples_of_a_prompt_are_those_of_their_seeds_alone(schedule: Schedule) -> None:
    llm, _ = llm_on(schedule)
    outputs = llm.generate([[40, 41], [42]], [SamplingParams(max_tokens=12, seed=9, n=3), SamplingParams(max_tokens=4)])
    assert [completion.index for completion in outputs[0].outputs] == [0, 1, 2] and len(outputs[1].outputs) == 1
    for index, completion in enumerate(outputs[0].outputs):
        alone = llm.generate([40, 41], SamplingParams(max_tokens=12, seed=sample_seed(9, index)))[0].outputs[0]
        assert (completion.text, completion.token_ids) == (alone.text, alone.token_ids)
    assert outputs[0].seed == 9 and len({completion.token_ids for completion in outputs[0].outputs}) == 3
    emitted = sum(len(completion.token_ids) for completion in outputs[0].outputs)
    assert sum(outputs[0].stats.run_lengths) == emitted - 3
    drawn = llm.generate([40, 41], SamplingParams(max_tokens=12, n=2))[0]
    again = llm.generate([40, 41], SamplingParams(max_tokens=12, n=2, seed=drawn.seed))[0]
    assert drawn.outputs == again.outputs


def test_seeds_of_samples_are_63_bits_and_differ() -> None:
    seeds = {sample_seed(seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 2500 and all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(7, 0) == 7


def test_abort_ends_all_samples() -> None:
    llm, _ = llm_on()
    stream = llm.stream([40], SamplingParams(max_tokens=40, n=3, seed=1, ignore_eos=True), request_ids=["many"])
    pieces = [next(stream)]
    assert llm.abort("many")
    pieces += stream
    whole = pieces[-1].output
    assert whole is not None and [one.finish_reason for one in whole.outputs] == ["abort"] * 3
    assert_clean(llm)


def test_a_failing_device_ends_every_call() -> None:
    class Failing(FakeExecutor):
        def launch(self, step: Step) -> StepResult:
            if len(self.steps) == 6:
                self.steps.append(step)
                raise RuntimeError("the device is on fire")
            return super().launch(step)

    fake = Failing(hashed(TEXTS))
    llm = LLM.from_executor(
        WorkerExecutor(fake), speculative=SpeculativeConfig(), engine=EngineConfig(schedule="overlap")
    )
    stream = llm.stream([40], LONG)
    pieces = [next(stream)]
    with pytest.raises(RuntimeError, match="on fire"):
        llm.generate([41], LONG)
    pieces += stream
    assert pieces[-1].finish_reason == "abort"
    assert_clean(llm)
