"""Tree selection against a plain sort and plain loops over parents."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.speculative.tree import DraftTree, chain, select_tree, top_children

INF = math.inf


def ancestors(parents: list[int]) -> list[int]:
    """Bit j of word i: walking up from i meets j. As signed 64-bit, like the tensor."""
    words = []
    for node in range(len(parents)):
        word, at = 0, node
        while at >= 0:
            word |= 1 << at
            at = parents[at]
        words.append(word - 2**64 if word >= 2**63 else word)
    return words


def random_candidates(requests: int, steps: int, topk: int, seed: int, coarse: bool) -> tuple[torch.Tensor, ...]:
    """Candidates in level order whose scores never rise from parent to child; coarse scores tie often."""
    rng = torch.Generator().manual_seed(seed)
    width = topk + (steps - 1) * topk * topk
    token = torch.randint(1000, (requests, width), generator=rng)
    drop = torch.rand(requests, width, generator=rng)
    drop = (drop * 2).floor() if coarse else drop
    parent, depth, score = torch.full_like(token, -1), torch.ones_like(token), torch.zeros(requests, width)
    score[:, :topk] = -drop[:, :topk]
    first, level = 0, topk
    for step in range(1, steps):
        at = topk + (step - 1) * topk * topk
        for request in range(requests):
            frontier = first + torch.randperm(level, generator=rng)[:topk]
            parent[request, at : at + topk * topk] = frontier.repeat_interleave(topk)
        here = slice(at, at + topk * topk)
        score[:, here] = score.gather(1, parent[:, here]) - drop[:, here]
        depth[:, here] = step + 1
        first, level = at, topk * topk
    return token, score, parent, depth


@settings(max_examples=80, deadline=None)
@given(
    requests=st.integers(1, 4),
    steps=st.integers(1, 5),
    topk=st.integers(1, 4),
    nodes=st.integers(1, 64),
    seed=st.integers(0, 2**16),
    coarse=st.booleans(),
)
def test_selects_the_best_and_links_them(
    requests: int, steps: int, topk: int, nodes: int, seed: int, coarse: bool
) -> None:
    token, score, parent, depth = random_candidates(requests, steps, topk, seed, coarse)
    nodes = min(nodes, token.shape[1] + 1)
    bonus = torch.arange(requests) + 5000
    tree = select_tree(bonus, token, score, parent, depth, nodes)
    for b in range(requests):
        by_score = sorted(range(token.shape[1]), key=lambda m, b=b: (-float(score[b, m]), m))
        chosen = sorted(by_score[: nodes - 1])
        node_of = {-1: 0, **{candidate: i + 1 for i, candidate in enumerate(chosen)}}
        parents = [-1, *(node_of[int(parent[b, m])] for m in chosen)]
        assert tree.token_BN[b].tolist() == [5000 + b, *(int(token[b, m]) for m in chosen)]
        assert tree.parent_BN[b].tolist() == parents
        assert tree.depth_BN[b].tolist() == [0, *(int(depth[b, m]) for m in chosen)]
        assert tree.ancestors_BN[b].tolist() == ancestors(parents)
        assert all(above < node for node, above in enumerate(parents))
        assert all(
            bin(w % 2**64).count("1") == d + 1
            for w, d in zip(tree.ancestors_BN[b].tolist(), tree.depth_BN[b].tolist(), strict=True)
        )


@pytest.mark.parametrize("steps", [0, 1, 5, 63])
def test_a_chain_is_the_tree_of_one_child(steps: int) -> None:
    bonus, drafts = torch.tensor([8, 9]), torch.arange(2 * steps).view(2, steps)
    tree = chain(bonus, drafts)
    score = -torch.arange(steps, dtype=torch.float32).repeat(2, 1)
    index = torch.arange(steps).repeat(2, 1)
    same = select_tree(bonus, drafts, score, index - 1, index + 1, steps + 1)
    for name in DraftTree.__dataclass_fields__:
        assert torch.equal(getattr(tree, name), getattr(same, name)), name
        assert getattr(tree, name).dtype == torch.int64
    assert tree.ancestors_BN[0].tolist() == ancestors([i - 1 for i in range(steps + 1)])


def test_sixty_four_nodes_use_the_sign_bit() -> None:
    tree = chain(torch.tensor([1]), torch.arange(63)[None])
    assert int(tree.ancestors_BN[0, 63]) == -1
    star = select_tree(
        torch.tensor([1]),
        torch.arange(70)[None],
        torch.zeros(1, 70),
        torch.full((1, 70), -1),
        torch.ones(1, 70, dtype=torch.int64),
        64,
    )
    assert int(star.ancestors_BN[0, 63]) == -(2**63) + 1
    with pytest.raises(AssertionError):
        chain(torch.tensor([1]), torch.arange(64)[None])


def test_equal_scores_take_the_parent_before_its_child() -> None:
    """A sure child has its parent's score; an unstable sort could take it alone."""
    width, steps = 40, 40
    index = torch.arange(width)[None]
    tree = select_tree(torch.tensor([0]), index, torch.zeros(1, width), index - 1, index + 1, steps // 2)
    assert tree.parent_BN[0].tolist() == list(range(-1, steps // 2 - 1))


def test_a_node_without_its_parent_hangs_nowhere() -> None:
    """A drafter whose scores rise breaks its own tree only: the orphan is no child of any node."""
    tree = select_tree(
        torch.tensor([7]),
        torch.tensor([[1, 2, 3]]),
        torch.tensor([[-1.0, -9.0, -2.0]]),
        torch.tensor([[-1, -1, 1]]),
        torch.tensor([[1, 1, 2]]),
        3,
    )
    assert tree.token_BN[0].tolist() == [7, 1, 3]
    assert tree.parent_BN[0].tolist() == [-1, 0, -1]
    assert tree.ancestors_BN[0].tolist() == [1, 3, 4]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), rows=st.integers(1, 4), width=st.integers(1, 12), double=st.booleans())
def test_top_children_are_the_first_of_a_stable_sort(data: st.DataObject, rows: int, width: int, double: bool) -> None:
    k = data.draw(st.integers(1, min(8, width)))
    few = st.sampled_from([-INF, -2.0, 0.5, 0.5, 3.0, -3.4e38])
    values = data.draw(st.lists(st.lists(few, min_size=width, max_size=width), min_size=rows, max_size=rows))
    score = torch.tensor(values, dtype=torch.float64 if double else torch.float32)
    value, index = top_children(score, k)
    for row in range(rows):
        order = sorted(range(width), key=lambda i, row=row: (-values[row][i], i))
        # Only the float32 minimum itself may tie with a masked score.
        assert index[row].tolist() == order[:k] or not score.isfinite().all()
        assert len(set(index[row].tolist())) == k
        assert torch.equal(value[row], score[row][index[row]])
        assert value[row].tolist() == [score[row, i].item() for i in order[:k]]


def test_siblings_stay_distinct_when_filters_left_fewer() -> None:
    _, index = top_children(torch.tensor([[-INF, -INF, 4.0, -INF, -INF]]), 4)
    assert index.tolist() == [[2, 0, 1, 3]]
