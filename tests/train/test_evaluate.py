"""The replay evaluator against drafting one place at a time, and the sampler against choosing one token at a time."""

from __future__ import annotations

import pytest
import torch

from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.runner.sampling import SamplingRows, choose, perturb, process
from frostline.train.evaluate import Tally
from frostline.train.generate import Prompt, generate
from frostline.train.lookup import lookup_drafts
from frostline.train.loops import loop_starts
from frostline.train.replay import Sampling, Text, draft_everywhere, walk
from tests.train import toy

PROMPTS = ((2, 5, 9), (2, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49), (2,))
SAMPLED = Sampling(temperature=1.0, top_k=20, top_p=0.9)
NEW = 16


def one_row(sampling: Sampling, seed: int) -> SamplingRows:
    one = torch.ones(1, dtype=torch.float64)
    return SamplingRows(
        temperature=one * sampling.temperature,
        top_k=torch.tensor([sampling.top_k]),
        top_p=one * sampling.top_p,
        min_p=one * 0,
        seed=torch.tensor([seed]),
    )


def naive_continuation(target: Decoder, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(NEW):
        hidden, _ = toy.target_rows(target, tokens)
        score = perturb(
            target.logits(hidden[:, -1]),
            one_row(sampling, seed),
            torch.tensor([len(tokens)]),
            sampled=sampling.temperature > 0,
            filtered=True,
        )
        tokens.append(int(choose(score)))
    return tokens[len(prompt) :]


def written(target: Decoder, sampling: Sampling) -> list[Text]:
    prompts = [
        Prompt(tokens=p, seed=70 + n, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
        for n, p in enumerate(PROMPTS)
    ]
    made = generate(target, prompts, max_new=NEW, stop=(), batch=2)
    return [
        Text(kind="toy", tokens=(*p.tokens, *new), prompt_length=len(p.tokens), seed=p.seed)
        for p, new in zip(prompts, made, strict=True)
    ]


def naive_drafts(
    target: Decoder, assistant: Assistant, text: Text, place: int, num_steps: int, sampling: Sampling
) -> tuple[list[int], float]:
    """Drafts at P = place by a loop over depths, and the overlap at depth 1 from whole-vocabulary distributions."""
    hidden, context = toy.target_rows(target, list(text.tokens[:place]))
    state, token, drafts, overlap = hidden[0, -1], text.tokens[place], [], 0.0
    rows = one_row(sampling, text.seed)
    for s in range(1, num_steps + 1):
        u, state = toy.draft_step(target, assistant, context, place, token, state)
        found = assistant.head(u.unsqueeze(0))
        whole = torch.full((1, toy.VOCAB), -torch.inf, dtype=torch.float64)
        assert found.token_ids is not None
        whole.scatter_(1, found.token_ids, found.logits)
        if s == 1 and sampling.temperature > 0:
            after, _ = toy.target_rows(target, list(text.tokens[: place + 1]))
            p = process(target.logits(after[:, -1]), rows).softmax(-1)
            overlap = torch.minimum(p, process(whole, rows).softmax(-1)).sum().item()
        sampled = sampling.temperature > 0
        score = perturb(whole, rows, torch.tensor([place + s]), sampled=sampled, filtered=True)
        token = int(choose(score))
        drafts.append(token)
    return drafts, overlap


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_batched_sampler_equals_one_token_at_a_time(sampling: Sampling) -> None:
    target = toy.toy_target(torch.float64)
    for text in written(target, sampling):
        expected = naive_continuation(target, text.tokens[: text.prompt_length], sampling, text.seed)
        assert list(text.tokens[text.prompt_length :]) == expected


def test_sampler_ends_rows_at_stop_tokens() -> None:
    target = toy.toy_target(torch.float64)
    free = generate(target, [Prompt(tokens=p) for p in PROMPTS], max_new=NEW, stop=())
    stop = free[0][4]
    ended = generate(target, [Prompt(tokens=p) for p in PROMPTS], max_new=NEW, stop=(stop,))
    assert ended[0] == free[0][: free[0].index(stop) + 1]
    assert all(row == whole[: len(row)] for row, whole in zip(ended, free, strict=True))


@pytest.mark.parametrize("position", ["P", "P-1"])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_replay_equals_drafting_at_every_place(sampling: Sampling, position: str) -> None:
    target = toy.toy_target(torch.float64)
    assistant = toy.toy_assistant(target, position=position)
    texts = written(target, sampling)
    found = draft_everywhere(target, assistant, texts, num_steps=3, sampling=sampling)
    for text, drafts in zip(texts, found, strict=True):
        assert drafts.drafts.shape == (NEW, 3)
        for place in range(text.prompt_length, len(text.tokens)):
            row = place - text.prompt_length
            expected, overlap = naive_drafts(target, assistant, text, place, 3, sampling)
            assert drafts.drafts[row].tolist() == expected, (text, place)
            if drafts.overlap is not None and place + 1 < len(text.tokens):
                assert drafts.overlap[row].item() == pytest.approx(overlap, abs=1e-12)
    assert (found[0].overlap is None) == (sampling.temperature == 0)


def test_ablations_and_argmax_drafts_change_what_is_drafted() -> None:
    target = toy.toy_target(torch.float64)
    assistant = toy.toy_assistant(target)
    texts = written(target, SAMPLED)

    def drafts(**ways: object) -> list[list[list[int]]]:
        made = draft_everywhere(target, assistant, texts, num_steps=2, **ways)  # type: ignore[arg-type]
        return [d.drafts.tolist() for d in made]

    plain = drafts(sampling=SAMPLED)
    assert drafts(sampling=SAMPLED, ablation="hidden") != plain
    assert drafts(sampling=SAMPLED, ablation="kv") != plain
    argmax = Sampling(temperature=1.0, top_k=20, top_p=0.9, argmax_drafts=True)
    assert drafts(sampling=argmax) == drafts() != plain


def test_walk_goes_on_behind_the_bonus_and_skips_what_cannot_be_judged() -> None:
    text = Text(kind="toy", tokens=(9, 9, 1, 2, 3, 4, 5, 6, 7), prompt_length=2)
    never = torch.zeros(7, 2, dtype=torch.int64)
    assert walk(text, never) == [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0)]
    right = torch.tensor([[2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 0], [0, 0]])
    assert walk(text, right) == [(2, 2), (5, 2)]
    half = right.clone()
    half[0, 1] = 63
    assert walk(text, half) == [(2, 1), (4, 2)]


def test_tally_is_conditional_per_depth() -> None:
    tally = Tally.empty(3)
    for accepted in (0, 1, 3, 3):
        tally.add(accepted, 0.0)
    assert tally.summary() == {"iterations": 4, "accept_length": 2.75, "per_depth": [0.75, 0.667, 1.0]}


def test_loops_are_cut_after_their_first_round() -> None:
    texts = [list(range(100)), [*range(20), *[1, 2, 3] * 30], [*range(20), *[1, 2, 3] * 20], [7] * 64, [7] * 63, []]
    assert loop_starts(texts) == [100, 23, 80, 1, 63, 0]
    assert loop_starts([[*range(30), *[1, 2, 3] * 30, *range(9)]]) == [33]
    assert loop_starts([]) == []


def test_lookup_proposes_what_followed_the_latest_longest_match() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 7, 2, 3, 4]
    assert lookup_drafts(tokens, len(tokens) - 1, 2) == [6, 7]
    assert lookup_drafts([1, 2, 3], 2, 2) == []
    assert lookup_drafts([5, 5, 5], 2, 3) == [5]
