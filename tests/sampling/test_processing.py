"""Penalties, biases and masks at the nodes of a tree, against one token at a time in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from frostline.runner.processing import Paths, Processor, RuleState
from frostline.runner.rules import NEVER, LogitRules, RuleFeatures
from frostline.speculative.scoring import paths_of
from frostline.speculative.tree import DraftTree, chain, select_tree
from tests.sampling.reference import processed

VOCAB = 13
EVERYTHING = RuleFeatures(penalties=True, bias=True, masks=True)


def some_rules(rng: random.Random) -> LogitRules:
    """Each kind of rule on or off."""

    def ids(most: int) -> list[int]:
        return rng.sample(range(VOCAB), rng.randint(1, most))

    return LogitRules(
        frequency=rng.choice([0.0, 0.7, -0.4]),
        presence=rng.choice([0.0, 1.1]),
        repetition=rng.choice([1.0, 1.3, 0.8]),
        prompt_ids=tuple(rng.choices(range(VOCAB), k=5)),
        output_ids=tuple(rng.choices(range(VOCAB), k=rng.randint(1, 6))),
        bias=tuple((token, rng.uniform(-3, 3)) for token in rng.choice([[], ids(3)])),
        earliest=tuple((token, rng.choice([20, 22, NEVER])) for token in rng.choice([[], ids(4)])),
        allowed=rng.choice([None, tuple(ids(6))]),
    )


def some_tree(rng: random.Random, batch: int, topk: int) -> DraftTree:
    """Few tokens, so that paths repeat them and siblings of others hold them."""
    if topk == 1:
        return chain(*(torch.randint(0, 4, shape) for shape in ((batch,), (batch, 4))))
    steps, count = 3, topk + 2 * topk * topk
    parents, depths = [-1] * topk, [1] * topk
    for level in range(1, steps):
        first = len(parents) - (topk if level == 1 else topk * topk)
        parents += [first + rng.randrange(topk) for _ in range(topk) for _ in range(topk)]
        depths += [level + 1] * topk * topk
    shape = (batch, count)
    score = torch.tensor(depths).neg().double().expand(shape) + torch.rand(shape) * 0.1
    bonus, token = torch.randint(0, 4, (batch,)), torch.randint(0, 4, shape)
    parent, depth = torch.tensor(parents).expand(shape), torch.tensor(depths).expand(shape)
    return select_tree(bonus, token, score, parent, depth, 10)


def state_with(rules: Sequence[LogitRules | None], dtype: torch.dtype = torch.float64) -> RuleState:
    state = RuleState(num_rows=len(rules) + 1, vocab_size=VOCAB, dtype=dtype, device=torch.device("cpu"))
    for row, one in enumerate(rules, start=1):
        state.admit(row, one)
    return state


@pytest.mark.parametrize("topk", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_every_node_gets_the_logits_of_plain_decoding(topk: int, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    rules = [some_rules(rng) for _ in range(4)]
    state, rows = state_with(rules), torch.tensor([3, 1, 4])
    tree = some_tree(rng, len(rows), topk)
    nodes = tree.token_BN.shape[1]
    logits = torch.randn(len(rows), nodes, VOCAB, dtype=torch.float64) * 3
    # The bonus is in the counts when an iteration begins: the last token of output_ids stands for it here.
    length = torch.tensor([17, 19, 20])
    position = length[:, None] + tree.depth_BN + 1
    paths = paths_of(tree)
    found = Processor(state, rows, EVERYTHING)(logits, position, None, paths)
    for at, row in enumerate(rows.tolist()):
        for node in range(nodes):
            path, above = [], node
            while above > 0:
                path.append(int(tree.token_BN[at, above]))
                above = int(tree.parent_BN[at, above])
            one = rules[row - 1]
            output, place = [*one.output_ids, *path], int(position[at, node])
            expected = processed(logits[at, node].tolist(), one, output, place, range(VOCAB))
            torch.testing.assert_close(found[at, node], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert not torch.isneginf(found).all(-1).all() and torch.isneginf(found).any()


@pytest.mark.parametrize("seed", range(6))
def test_candidates_get_what_they_get_among_the_vocabulary(seed: int) -> None:
    """A head that names its candidates, as the drafter's may, and one that scores the vocabulary."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    state, rows = state_with([some_rules(rng) for _ in range(3)]), torch.tensor([2, 3])
    logits = torch.randn(2, 4, VOCAB, dtype=torch.float64)
    ids = torch.stack([torch.randperm(VOCAB)[:5] for _ in range(8)]).view(2, 4, 5)
    position = torch.tensor([[20, 20, 21, 21], [19, 21, 22, 23]])
    token = torch.randint(0, VOCAB, (2, 4, 3))
    paths = Paths(token=token, counts=torch.rand(2, 4, 3) < 0.7)
    processor = Processor(state, rows, EVERYTHING)
    for path in (None, paths):
        dense = processor(logits, position, None, path)
        assert torch.equal(processor(logits.gather(2, ids), position, ids, path), dense.gather(2, ids))


def test_counting_what_was_emitted_is_the_same_as_having_had_it_from_the_start() -> None:
    penalties = {"frequency": 0.5, "presence": 0.25, "repetition": 1.2, "prompt_ids": (1, 2)}
    state = state_with([LogitRules(**penalties, output_ids=(4,)), None, LogitRules(**penalties)])
    tokens = torch.tensor([[4, 5, 5], [7, 8, 9], [6, 4, 4], [3, 3, 3]])
    kept = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]]).bool()
    state.count(torch.tensor([1, 2, 3, 0]), tokens, kept)
    whole = state_with(
        [LogitRules(**penalties, output_ids=(4, 4, 5)), None, LogitRules(**penalties, output_ids=(6, 4, 4))]
    )
    assert state.penalties is not None and whole.penalties is not None
    for row in (1, 3):
        assert torch.equal(state.penalties.counts[row], whole.penalties.counts[row])
    assert not state.penalties.counts[0].any(), "padding counts nothing"
    logits = torch.randn(1, 1, VOCAB, dtype=torch.float64)
    position = torch.tensor([[9]])
    untouched = Processor(state, torch.tensor([2]), RuleFeatures(penalties=True))(logits, position, None, None)
    assert torch.equal(untouched, logits), "a row without rules is neutral, whatever it emits"


def test_a_row_has_nothing_of_its_last_request() -> None:
    rng = random.Random(5)
    first, second = some_rules(rng), LogitRules(bias=((3, 1.0),))
    used, fresh = state_with([first]), state_with([second])
    used.admit(1, second)
    logits, position = torch.randn(1, 1, VOCAB, dtype=torch.float64), torch.tensor([[0]])
    rows = torch.tensor([1])
    assert torch.equal(
        Processor(used, rows, EVERYTHING)(logits, position, None, None),
        Processor(fresh, rows, RuleFeatures(bias=True))(logits, position, None, None),
    )
    used.admit(1, None)
    assert torch.equal(Processor(used, rows, EVERYTHING)(logits, position, None, None), logits)


def test_state_exists_once_a_request_needs_it_and_no_sooner() -> None:
    state = state_with([None, LogitRules(bias=((1, 2.0),))])
    assert state.bias is not None and state.penalties is None and state.earliest is None
    assert state.tensors(RuleFeatures()) == ()
    assert [tuple(t.shape) for t in state.tensors(RuleFeatures(bias=True))] == [(3, VOCAB)]
    state.admit(1, LogitRules(presence=1.0, earliest=((2, NEVER),)))
    assert len(state.tensors(EVERYTHING)) == 7
    again = state.over(EVERYTHING, state.tensors(EVERYTHING))
    assert again.bias is state.bias and again.earliest is state.earliest
    assert again.penalties is not None and again.penalties.counts is state.penalties.counts  # type: ignore[union-attr]


def test_rules_know_what_they_need() -> None:
    assert not LogitRules().features.any
    late = LogitRules(earliest=((3, 12),))
    assert late.features_at(11).masks and not late.features_at(12).masks
    assert LogitRules(allowed=(1,)).features_at(10**6).masks
    assert LogitRules(repetition=0.9).features == RuleFeatures(penalties=True)
