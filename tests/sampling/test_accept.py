"""The acceptance walk against a loop per request, and exact losslessness: any drafts, the same tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.runner.sampling import SamplingRows, choose, perturb
from frostline.speculative.accept import accept_walk
from frostline.speculative.tree import DraftTree, chain, select_tree, top_children
from tests.sampling.toy import coupled, garbage, plain, speculate, toy
from tests.sampling.watch import HOST_READS, Watch


def walk(tree: DraftTree, request: int, choice: list[int], cap: int, steps: int) -> tuple[list[int], int]:
    tokens, parents = tree.token_BN[request].tolist(), tree.parent_BN[request].tolist()
    path = [0]
    while len(path) <= min(cap, steps):
        children = [n for n in range(len(tokens)) if parents[n] == path[-1] and tokens[n] == choice[path[-1]]]
        if not children:
            break
        path.append(children[0])
    return path + [path[-1]] * (steps + 1 - len(path)), len(path) - 1


@settings(max_examples=80, deadline=None)
@given(data=st.data(), steps=st.integers(1, 5), topk=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_walk_equals_a_loop_per_request(data: st.DataObject, steps: int, topk: int, seed: int) -> None:
    requests, vocab, most = 6, 4, topk + (steps - 1) * topk * topk
    nodes = steps + 1 if topk == 1 else data.draw(st.integers(1, most + 1))
    rng = torch.Generator().manual_seed(seed)
    game = toy(vocab, seed=0)
    tree = garbage(steps, topk, nodes, seed=seed)(game, None, torch.zeros(requests, dtype=torch.int64), None)  # type: ignore[arg-type]
    choice = torch.randint(vocab, (requests, nodes), generator=rng)
    # Half of the choices follow a child, so that deep walks happen.
    for request in range(requests):
        for node in range(1, nodes, 2):
            choice[request, tree.parent_BN[request, node]] = tree.token_BN[request, node]
    cap = torch.randint(steps + 2, (requests,), generator=rng)
    path, accepted = accept_walk(tree, choice, cap, steps)
    assert path.dtype == accepted.dtype == torch.int64 and path.shape == (requests, steps + 1)
    for request in range(requests):
        expected = walk(tree, request, choice[request].tolist(), int(cap[request]), steps)
        assert (path[request].tolist(), int(accepted[request])) == expected


def test_plain_decoding_accepts_nothing() -> None:
    tree = chain(torch.tensor([3, 4]), torch.zeros(2, 0, dtype=torch.int64))
    path, accepted = accept_walk(tree, torch.tensor([[9], [8]]), torch.tensor([5, 0]), 0)
    assert path.tolist() == [[0], [0]]
    assert accepted.tolist() == [0, 0]


def test_own_depth_caps_what_is_accepted() -> None:
    tree = chain(torch.tensor([0] * 5), torch.tensor([[1, 2, 3]] * 5))
    choice = torch.tensor([[1, 2, 3, 4]] * 5)
    path, accepted = accept_walk(tree, choice, torch.tensor([0, 1, 2, 3, 9]), 3)
    assert accepted.tolist() == [0, 1, 2, 3, 3]
    assert path.tolist() == [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_right_token_under_another_node_is_not_a_child() -> None:
    """Bonus 0; children 1 and 2; 5 hangs under 2 only, and is what the target wants after 1."""
    tree = select_tree(
        torch.tensor([0]),
        torch.tensor([[1, 2, 5]]),
        torch.tensor([[-1.0, -1.0, -2.0]]),
        torch.tensor([[-1, -1, 1]]),
        torch.tensor([[1, 1, 2]]),
        4,
    )
    path, accepted = accept_walk(tree, torch.tensor([[1, 5, 0, 0]]), torch.tensor([2]), 2)
    assert (path.tolist(), accepted.tolist()) == ([[0, 1, 1]], [1])
    path, accepted = accept_walk(tree, torch.tensor([[2, 0, 5, 0]]), torch.tensor([2]), 2)
    assert (path.tolist(), accepted.tolist()) == ([[0, 2, 3]], [2])


def mixed_rows(requests: int, dtype: torch.dtype) -> SamplingRows:
    """Greedy, plain, filtered and hot requests side by side."""
    kinds = torch.tensor(
        [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 4, 0.9, 0.0), (1.5, 0, 0.8, 0.0), (1.0, 3, 1.0, 0.1)],
        dtype=dtype,
    )[torch.arange(requests) % 5]
    return SamplingRows(
        temperature=kinds[:, 0],
        top_k=kinds[:, 1].long(),
        top_p=kinds[:, 2],
        min_p=kinds[:, 3],
        seed=torch.arange(requests) * 1_000_003,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("steps", "topk", "nodes"), [(1, 1, 2), (4, 1, 5), (3, 2, 6), (3, 3, 16), (2, 3, 13)])
@pytest.mark.parametrize("kind", ["garbage", "coupled"])
def test_any_drafts_give_the_same_tokens(kind: str, steps: int, topk: int, nodes: int, dtype: torch.dtype) -> None:
    requests, length, vocab = 200, 12, 7
    game = toy(vocab, seed=11, dtype=dtype)
    rows = mixed_rows(requests, dtype)
    context = torch.arange(requests) % (vocab * vocab)
    position = torch.arange(requests) * 13
    cap = torch.arange(requests) % (steps + 1)
    draft = garbage(steps, topk, nodes, seed=steps) if kind == "garbage" else coupled(steps, topk, nodes)
    expected = plain(game, rows, context, position, length)
    got, accepted = speculate(game, rows, context, position, length, draft, steps, cap)
    assert torch.equal(got, expected)
    assert bool((accepted <= cap).all()) and int(accepted.max()) > 0
    free, accepted = speculate(game, rows, context, position, length, draft, steps)
    assert torch.equal(free, expected)
    assert int(accepted.max()) == steps or kind == "garbage"


def test_select_and_walk_read_nothing_back() -> None:
    rng = torch.Generator().manual_seed(0)
    parent = torch.tensor([[-1, -1, 0, 0, 1, 1]] * 3)
    token, score = torch.randint(5, (3, 6), generator=rng), -torch.rand(3, 6, generator=rng).cumsum(dim=1)
    bonus, choice, cap = torch.zeros(3, dtype=torch.int64), torch.randint(5, (3, 5), generator=rng), torch.arange(3)
    with Watch() as watch:
        top_children(score, 3)
        accept_walk(select_tree(bonus, token, score, parent, 1 + (parent >= 0).long(), 5), choice, cap, 2)
        accept_walk(chain(bonus, token[:, :4]), choice, cap, 4)
    assert {"sort", "argmax", "gather"} <= watch.operations
    assert not watch.operations & HOST_READS


@pytest.mark.gpu
def test_draft_scores_tree_and_walk_are_captured_in_one_graph() -> None:
    """The same tokens from a replay on new inputs as from the CPU, in float64."""
    vocab, requests, nodes = 500, 16, 9
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(4, requests, vocab, generator=rng, dtype=torch.float64) * 2
    parent, depth = torch.tensor([[-1] * 3 + [0] * 3 + [1] * 3 + [2] * 3] * requests), torch.tensor([[1] * 3 + [2] * 9])

    def step(
        rows: SamplingRows, draft_BV: torch.Tensor, target_BV: torch.Tensor, position: torch.Tensor
    ) -> list[torch.Tensor]:
        perturbed = perturb(draft_BV, rows, position, sampled=True, filtered=True, max_top_k=4)
        score, token = top_children(perturbed.log_softmax(dim=-1), 3)
        below = (score[:, :, None] + score[:, None]).flatten(1)
        token, score = torch.cat((token, token.repeat(1, 3)), dim=1), torch.cat((score, below), dim=1)
        links = parent.to(token.device, non_blocking=True), depth.to(token.device, non_blocking=True).expand_as(token)
        tree = select_tree(token[:, 0], token, score, *links, nodes)
        where = (position[:, None] + tree.depth_BN).flatten()
        verified = perturb(
            target_BV.repeat_interleave(nodes, dim=0),
            rows.repeat(nodes),
            where,
            sampled=True,
            filtered=True,
            max_top_k=4,
        )
        choice = choose(verified).view(requests, nodes)
        return [choice, tree.parent_BN, tree.ancestors_BN, *accept_walk(tree, choice, position % 3, 2)]

    rows = mixed_rows(requests, torch.float64)
    rows = SamplingRows(
        temperature=rows.temperature,
        top_k=torch.full_like(rows.top_k, 4),
        top_p=rows.top_p,
        min_p=rows.min_p,
        seed=rows.seed,
    )
    positions = torch.arange(requests) + 100, torch.arange(requests) * 3
    expected = step(rows, logits[2], logits[3], positions[1])

    there = SamplingRows(**{name: getattr(rows, name).cuda() for name in SamplingRows.__dataclass_fields__})
    parent, depth = parent.cuda(), depth.cuda()
    inputs = logits[0].cuda(), logits[1].cuda(), positions[0].cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(there, *inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step(there, *inputs)
    for slot, value in zip(inputs, (logits[2], logits[3], positions[1]), strict=True):
        slot.copy_(value)
    graph.replay()
    for got, want in zip(outputs, expected, strict=True):
        assert torch.equal(got.cpu(), want)
