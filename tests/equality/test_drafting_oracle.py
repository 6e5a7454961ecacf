"""Drafting has an oracle of its own, since any draft gives the same tokens (architecture 4.9).

At every place that the engine visits, the drafted nodes and what was accepted of them equal the reference drafter's;
and the comparison fails when drafting is broken in ways that cost acceptance and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from frostline.model.attention import FrozenContext
from frostline.runner.rows import Rows
from frostline.speculative import draft as drafting
from frostline.speculative.scoring import Scorer
from tests.equality.bundled import bundle, report, sampled, told
from tests.equality.drafter import ReferenceDrafter, Shape, accepted_of
from tests.equality.options import option_rows
from tests.equality.recording import RecordingExecutor, Track

CHAIN = SpeculativeConfig(num_steps=4)
DEEP = SpeculativeConfig(num_steps=7)
TREE = SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=14)
BUSHY = SpeculativeConfig(num_steps=3, topk=2, num_draft_tokens=11)
# Many candidates of nearly equal rank: the slightest change of a score changes which of them are kept.
SHARP = SpeculativeConfig(num_steps=4, topk=4, num_draft_tokens=32)
SHAPES = {"chain": CHAIN, "deep-chain": DEEP, "tree": TREE, "bushy-tree": BUSHY}


@pytest.fixture(scope="module")
def reference() -> ReferenceDrafter:
    return ReferenceDrafter(bundle().pair.target)


def run(
    config: SpeculativeConfig, prompts: Sequence[tuple[int, ...]], rows: Sequence[SamplingParams], batch: int
) -> tuple[list[RequestOutput], list[Track]]:
    recorders: list[RecordingExecutor] = []

    def wrap(device: Any) -> RecordingExecutor:
        recorders.append(RecordingExecutor(device))
        return recorders[0]

    outputs = bundle().llm(config, wrap=wrap, batch=batch, context=1024).generate(list(prompts), list(rows))
    return outputs, recorders[0].tracks


def mistakes(reference: ReferenceDrafter, tracks: Sequence[Track], *, offset: int = 0) -> tuple[int, list[str]]:
    """(iterations looked at, what is wrong with them)."""
    wrong, looked = [], 0
    for number, track in enumerate(tracks):
        known = reference.know(track.tokens)
        for at in track.iterations:
            plan, place = at.plan, at.known - 1
            shape = Shape(plan.num_steps, plan.topk, plan.verify_width, offset, plan.coupled)
            nodes = reference.draft(known, place, shape, track.init)
            assert at.run.nodes is not None
            looked += 1
            if (at.run.nodes.tokens, at.run.nodes.parents) != nodes:
                wrong.append(f"request {number}, P {place}: {at.run.nodes} drafted, not {nodes}")
            cap = min(track.init.depth, plan.num_steps)
            if len(at.run.tokens) - 1 != accepted_of(nodes, at.run.tokens, cap) or at.run.drafted != cap:
                wrong.append(f"request {number}, P {place}: {len(at.run.tokens) - 1} of {at.run.drafted} accepted")
    return looked, wrong


def per_depth(reference: ReferenceDrafter, track: Track, output: RequestOutput) -> tuple[list[int], list[int]]:
    """(drafted, accepted) per depth as the reference counts them; a run that was cut counts up to its cut."""
    known = reference.know(track.tokens)
    drafted, accepted = [0] * 8, [0] * 8
    for at, kept in zip(track.iterations, output.stats.run_lengths, strict=True):
        plan = at.plan
        nodes = reference.draft(known, at.known - 1, Shape(plan.num_steps, plan.topk, plan.verify_width), track.init)
        cap = min(track.init.depth, plan.num_steps)
        for depth in range(cap if kept == len(at.run.tokens) else kept):
            drafted[depth] += 1
        for depth in range(min(accepted_of(nodes, at.run.tokens, cap), kept)):
            accepted[depth] += 1
    return drafted, accepted


def mixed(count: int, depth: int, tokens: int) -> list[SamplingParams]:
    """Greedy and sampled rows, filters and own depths in turn. Depth 0 advances by one, so its every P is visited."""
    makers = (
        SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
        sampled(5, max_tokens=tokens),
        SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, num_steps=0),
        sampled(6, max_tokens=tokens, num_steps=0),
        sampled(7, max_tokens=tokens, temperature=0.7, top_k=0, top_p=0.8, min_p=0.02, num_steps=max(1, depth - 1)),
        sampled(8, max_tokens=tokens, top_k=5, top_p=1.0, num_steps=1),
    )
    return [makers[n % len(makers)] for n in range(count)]


def prompts(count: int) -> list[tuple[int, ...]]:
    """Short ones, one of a single token, and from the fourth on some that are far longer than the window."""
    held_out = [prompt.ids for prompt in bundle().held_out()[12:]]
    picked = [held_out[0], held_out[1][:1], held_out[2], *bundle().long_prompts((260, 400)), *held_out[5:]]
    return picked[:count]


@pytest.mark.parametrize("rule", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_batch_one_drafts_what_the_reference_drafts(reference: ReferenceDrafter, name: str, rule: str) -> None:
    row = sampled(3, max_tokens=14) if rule == "sampled" else mixed(1, 4, 14)[0]
    picked = prompts(4)[::3]
    outputs, tracks = run(SHAPES[name], picked, [row] * 2, batch=1)
    looked, wrong = mistakes(reference, tracks)
    assert wrong == []
    assert looked == sum(output.stats.iterations for output in outputs) > 4


@pytest.mark.parametrize("name", SHAPES)
def test_mixed_batches_draft_what_the_reference_drafts(reference: ReferenceDrafter, name: str) -> None:
    config = SHAPES[name]
    outputs, tracks = run(config, prompts(6), mixed(6, config.num_steps, 8), batch=4)
    looked, wrong = mistakes(reference, tracks)
    assert wrong == []
    assert looked > 20
    for track, output in zip(tracks, outputs, strict=True):
        drafted, accepted = per_depth(reference, track, output)
        depths = len(output.stats.drafted_per_depth)
        assert output.stats.drafted_per_depth == tuple(drafted[:depths]) and not any(drafted[depths:])
        assert output.stats.accepted_per_depth == tuple(accepted[:depths]) and not any(accepted[depths:])


@pytest.mark.parametrize(("position", "offset"), [("P", 0), ("P-1", -1)])
def test_both_draft_positions_and_argmax_drafts(reference: ReferenceDrafter, position: Any, offset: int) -> None:
    config = SpeculativeConfig(num_steps=3, draft_position=position, draft_sampling="argmax")
    _, tracks = run(config, prompts(4), mixed(4, 3, 6), batch=4)
    assert mistakes(reference, tracks, offset=offset)[1] == []


# ------------------------------------------------------------------ what the oracle must notice


def _offset_by_one(patch: pytest.MonkeyPatch) -> None:
    """The constant position is one too low."""
    init = FrozenContext.__init__
    patch.setattr(FrozenContext, "__init__", lambda self, *a, offset, **k: init(self, *a, offset=offset - 1, **k))


def _one_table_for_both_groups(patch: pytest.MonkeyPatch) -> None:
    """Every draft layer reads through the full group's page table (reported.md 23)."""
    init = FrozenContext.__init__

    def wrong(self: FrozenContext, *args: Any, tables: Any, **rest: Any) -> None:
        init(self, *args, tables={"sliding": tables["full"], "full": tables["full"]}, **rest)

    patch.setattr(FrozenContext, "__init__", wrong)


def _stale_rows(patch: pytest.MonkeyPatch) -> None:
    """One row above the frost line is visible: what a rejected draft left there (gemma4.md 3.2)."""
    init = FrozenContext.__init__

    def wrong(self: FrozenContext, *args: Any, length_B: torch.Tensor, offset: int, **rest: Any) -> None:
        init(self, *args, length_B=length_B + 1, offset=offset - 1, **rest)

    patch.setattr(FrozenContext, "__init__", wrong)


def _window_by_one(patch: pytest.MonkeyPatch) -> None:
    """Sliding layers see W + 1 keys."""
    init = FrozenContext.__init__

    def wrong(self: FrozenContext, cache: Any, target: Any, *args: Any, **rest: Any) -> None:
        init(self, cache, replace(target, window=target.window + 1), *args, **rest)

    patch.setattr(FrozenContext, "__init__", wrong)


def _hidden_of_another_parent(patch: pytest.MonkeyPatch) -> None:
    """A frontier node of the tree continues from its neighbour's hidden state."""
    call = drafting._Drafter.__call__

    def wrong(self: Any, depth: int, token: torch.Tensor, hidden: torch.Tensor) -> Any:
        return call(self, depth, token, hidden.roll(1, dims=1))

    patch.setattr(drafting._Drafter, "__call__", wrong)


def _hidden_of_another_request(patch: pytest.MonkeyPatch) -> None:
    """The seed hidden is the neighbour's in the batch (per-row state only, reported.md 36)."""
    seed = Rows.seed

    def wrong(self: Rows, rows: Any, length: Any, bonus: Any, hidden: torch.Tensor) -> None:
        seed(self, rows, length, bonus, hidden.roll(1, dims=0))

    patch.setattr(Rows, "seed", wrong)


def _noise_of_the_next_position(patch: pytest.MonkeyPatch) -> None:
    """Drafts are drawn with the noise of the position after theirs."""
    call = drafting._Drafter.__call__

    def wrong(self: Any, depth: int, token: torch.Tensor, hidden: torch.Tensor) -> Any:
        return call(self, depth + 1, token, hidden)

    patch.setattr(drafting._Drafter, "__call__", wrong)


def _scores_of_the_level_only(patch: pytest.MonkeyPatch) -> None:
    """Tree nodes are ranked without their parents' scores."""
    real = drafting.select_tree

    def wrong(bonus: Any, token: Any, score: torch.Tensor, parent: Any, depth: torch.Tensor, width: int) -> Any:
        return real(bonus, token, score / depth, parent, depth, width)

    patch.setattr(drafting, "select_tree", wrong)


MUTATIONS = {
    "offset": _offset_by_one,
    "page-table-group": _one_table_for_both_groups,
    "stale-rows": _stale_rows,
    "window": _window_by_one,
    "parents-hidden": _hidden_of_another_parent,
    "seed-hidden": _hidden_of_another_request,
    "noise-position": _noise_of_the_next_position,
    "path-scores": _scores_of_the_level_only,
}


def sharp_run() -> tuple[list[RequestOutput], list[Track]]:
    return run(SHARP, prompts(4), mixed(4, 4, 8), batch=4)


@pytest.fixture(scope="module")
def sound(reference: ReferenceDrafter) -> list[RequestOutput]:
    outputs, tracks = sharp_run()
    assert mistakes(reference, tracks)[1] == []
    return outputs


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_oracle_notices_broken_drafting(
    reference: ReferenceDrafter, sound: list[RequestOutput], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mutation leaves the emitted tokens alone, so that nothing but the oracle can see it."""
    MUTATIONS[name](monkeypatch)
    found, tracks = sharp_run()
    assert [told(output) for output in found] == [told(output) for output in sound]
    looked, wrong = mistakes(reference, tracks)
    print(f"{name}: {len(wrong)} findings in {looked} iterations")
    assert wrong != []


def test_the_oracle_tells_a_draft_without_noise(reference: ReferenceDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    picked, rows = prompts(2), [sampled(3, max_tokens=10)] * 2
    init = Scorer.__init__
    monkeypatch.setattr(
        drafting, "Scorer", type("Mute", (Scorer,), {"__init__": lambda self, *a, **k: init(self, *a, noisy=False)})
    )
    assert mistakes(reference, run(CHAIN, picked, rows, batch=2)[1])[1] != []


@pytest.mark.parametrize("rule", [0.0, 1.0])
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_drafts_follow_the_options_that_change_logits(reference: ReferenceDrafter, name: str, rule: float) -> None:
    """Each node sees its own path, and positions decide what is masked, in drafts as in verification."""
    rows = option_rows(rule, 12)
    outputs, tracks = run(SHAPES[name], prompts(len(rows)), rows, batch=5)
    looked, wrong = mistakes(reference, tracks)
    assert wrong == [], wrong[:3]
    assert looked == sum(output.stats.iterations for output in outputs) > 30


# --------------------------------------------------------------------------------------------- make prove


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_prove_drafting(reference: ReferenceDrafter, name: str) -> None:
    config, count = SHAPES[name], 24
    picked = [prompt.ids for prompt in bundle().held_out()[: count - 3]] + bundle().long_prompts((240, 360, 500))
    outputs, tracks = run(config, picked, mixed(count, config.num_steps, 40), batch=9)
    looked, wrong = mistakes(reference, tracks)
    nodes = sum(at.plan.verify_width - 1 for track in tracks for at in track.iterations)
    figures = {"prompts": count, "iterations": looked, "drafted_nodes": nodes, "differing_iterations": len(wrong)}
    report(f"drafting-{name}", figures)
    assert wrong == [], wrong[:3]
    assert looked == sum(output.stats.iterations for output in outputs)
