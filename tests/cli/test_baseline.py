"""transformers' generate, as the bench runs it, gives the engine's own greedy tokens: the two do the same work."""

from __future__ import annotations

from pathlib import Path

import torch

from frostline import LLM, SamplingParams
from frostline.cli.baseline import TransformersBaseline
from frostline.cli.cases import baseline_cases
from frostline.cli.options import ModelOptions
from tests.model.tiny import save_pair

TOKENS = 12


def test_a_padded_batch_gives_the_engines_tokens_and_runs_past_the_end_of_text(tmp_path: Path) -> None:
    target, _ = save_pair("e2b", tmp_path)
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [20, 21, 22]]
    llm = LLM(str(target), draft="none", dtype="float64", max_num_seqs=2)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    ours = [item.outputs[0].token_ids for item in llm.generate(prompts, params)]
    baseline = TransformersBaseline(target, device=torch.device("cpu"), dtype=torch.float64)
    theirs, seconds = baseline.generate(prompts, TOKENS)
    assert theirs == ours
    assert seconds > 0
    assert {len(row) for row in theirs} == {TOKENS}


def test_cases_cycle_the_prompts_to_the_batch(tmp_path: Path) -> None:
    target, _ = save_pair("e2b", tmp_path)
    llm = LLM(str(target), draft="none", max_num_seqs=2)
    (case,) = baseline_cases(llm, ModelOptions(model=str(target), device="cpu"), [[5, 6], [7, 8, 9]], [3], 4)
    tokens, _, outputs = case.run(None)
    assert [len(row) for row in tokens] == [4, 4, 4]
    assert tokens[0] == tokens[2] and outputs == []
