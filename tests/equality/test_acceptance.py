"""What drafting is worth on the bundled pair, from the engine's own counters, and agreement with the replay evaluator.

Texts are cut where they loop by the card's rule, and iterations whose drafts run past the end of the text are not
counted, as in the card. In float64 the engine and the replay must agree run by run, so no tolerance is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from frostline.train.evaluate import SAMPLED, tallied
from frostline.train.loops import loop_starts
from frostline.train.replay import Drafts, Sampling, Text, draft_everywhere, walk
from tests.equality.bundled import accept_length, bundle, report

K = 4
CHAIN = SpeculativeConfig(num_steps=K)
ARGMAX = replace(CHAIN, draft_sampling="argmax")
SEED = 1234
# The rules of the three ways of drafting that are measured: what the engine does, and what the replay calls it.
GREEDY = Sampling()
ARGMAX_DRAFTS = replace(SAMPLED, argmax_drafts=True)


@dataclass(frozen=True)
class Measured:
    """Outputs of the engine, the texts they make, and the replay's drafts at every place of these."""

    outputs: list[RequestOutput]
    texts: list[Text]
    replayed: list[Drafts]

    def runs(self) -> list[list[tuple[int, int]]]:
        """(P, accepted) of every counted iteration, from the engine's run lengths."""
        several = []
        for output, text in zip(self.outputs, self.texts, strict=True):
            place, visited = text.prompt_length, []
            for length, accepted in zip(output.stats.run_lengths, accepted_per_run(output), strict=True):
                if place + K >= len(text.tokens):
                    break
                visited.append((place, accepted))
                place += length
            several.append(visited)
        return several

    def summary(self) -> dict[str, dict[str, Any]]:
        """The evaluator's own tally of its replay, by kind and overall."""
        return tallied(self.texts, [(found.drafts, found.overlap) for found in self.replayed], K)

    def engine_accept_length(self, kind: str | None = None) -> float:
        runs = [
            accepted + 1
            for text, visited in zip(self.texts, self.runs(), strict=True)
            if kind in (None, text.kind)
            for _, accepted in visited
        ]
        return sum(runs) / len(runs)

    def depth_1(self) -> float:
        """Acceptance of first drafts from SpecStats, all runs of all requests."""
        offered = sum(output.stats.drafted_per_depth[0] for output in self.outputs if output.stats.drafted)
        return sum(output.stats.accepted_per_depth[0] for output in self.outputs if output.stats.drafted) / offered


def accepted_per_run(output: RequestOutput) -> list[int]:
    """Accepted drafts of every run. Only the last may be cut inside, its bonus or more; the counters tell."""
    earlier = [length - 1 for length in output.stats.run_lengths[:-1]]
    return [*earlier, sum(output.stats.accepted_per_depth) - sum(earlier)] if output.stats.iterations else []


def measure(config: SpeculativeConfig, sampling: Sampling, count: int, tokens: int, batch: int) -> Measured:
    prompts = bundle().held_out()[:count]
    rows = [
        SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=SEED + number,
            max_tokens=tokens,
        )
        for number in range(count)
    ]
    outputs = bundle().llm(config, batch=batch, context=512).generate([prompt.ids for prompt in prompts], rows)
    made = [list(output.outputs[0].token_ids) for output in outputs]
    texts = [
        Text(kind=prompt.kind, tokens=(*prompt.ids, *new[:end]), prompt_length=len(prompt.ids), seed=SEED + number)
        for number, (prompt, new, end) in enumerate(zip(prompts, made, loop_starts(made), strict=True))
    ]
    pair, found = bundle().pair, dict[int, Drafts]()
    assert pair.assistant is not None
    # Texts of like length together: a dense pass costs what its longest text costs.
    order = sorted(range(count), key=lambda n: len(texts[n].tokens))
    for first in range(0, count, 24):
        part = order[first : first + 24]
        drafts = draft_everywhere(pair.target, pair.assistant, [texts[n] for n in part], num_steps=K, sampling=sampling)
        found |= dict(zip(part, drafts, strict=True))
    replayed = [found[n] for n in range(count)]
    return Measured(outputs, texts, replayed)


def agree(measured: Measured) -> None:
    """The engine's runs are the replay's, one by one, and so are the figures made of them."""
    walks = [walk(text, found.drafts) for text, found in zip(measured.texts, measured.replayed, strict=True)]
    assert measured.runs() == walks
    overall = measured.summary()["overall"]["accept_length"]
    assert abs(measured.engine_accept_length() - overall) <= 0.0005


def figures(measured: Measured) -> dict[str, Any]:
    by_kind = measured.summary()
    return {
        "prompts": len(measured.texts),
        "tokens": sum(len(text.tokens) - text.prompt_length for text in measured.texts),
        "iterations": by_kind["overall"]["iterations"],
        "accept_length": {k: round(measured.engine_accept_length(None if k == "overall" else k), 3) for k in by_kind},
        "per_depth": by_kind["overall"]["per_depth"],
        "all_runs_loops_included": round(accept_length(measured.outputs), 3),
    }


def coupling(coupled: Measured) -> dict[str, float]:
    best = coupled.summary()["overall"]["overlap"]
    first = coupled.depth_1()
    return {"depth_1_from_stats": round(first, 4), "mean_sum_min_p_q": best, "ratio": round(first / best, 4)}


def judge_greedy(measured: Measured) -> None:
    agree(measured)
    kinds = {text.kind for text in measured.texts}
    assert len(kinds) == 6
    assert measured.engine_accept_length() >= 2.5
    assert {kind: round(n, 2) for kind in kinds if (n := measured.engine_accept_length(kind)) < 2.0} == {}


def judge_coupling(coupled: Measured, argmax: Measured) -> None:
    agree(coupled)
    agree(argmax)
    assert [o.outputs for o in coupled.outputs] == [o.outputs for o in argmax.outputs]
    assert coupling(coupled)["ratio"] >= 0.85
    assert coupled.engine_accept_length() > argmax.engine_accept_length()


def test_greedy_chain_pays_and_agrees_with_the_replay() -> None:
    judge_greedy(measure(CHAIN, GREEDY, 24, 32, batch=24))


def test_coupled_drafts_pay_and_agree_with_the_replay() -> None:
    """Few prompts: the ratio and the gain are judged on all of them in `make prove`, with room to spare here."""
    coupled = measure(CHAIN, SAMPLED, 18, 28, batch=18)
    judge_coupling(coupled, measure(ARGMAX, ARGMAX_DRAFTS, 18, 28, batch=18))


@pytest.mark.slow
def test_prove_greedy_accept_length() -> None:
    measured = measure(CHAIN, GREEDY, 360, 128, batch=40)
    report("accept-greedy", figures(measured))
    judge_greedy(measured)


@cache
def _coupled() -> Measured:
    return measure(CHAIN, SAMPLED, 360, 128, batch=40)


@pytest.mark.slow
def test_prove_coupling_sampled() -> None:
    coupled, argmax = _coupled(), measure(ARGMAX, ARGMAX_DRAFTS, 360, 128, batch=40)
    report("accept-sampled-coupled", figures(coupled) | coupling(coupled))
    report("accept-sampled-argmax", figures(argmax) | {"depth_1_from_stats": round(argmax.depth_1(), 4)})
    judge_coupling(coupled, argmax)
