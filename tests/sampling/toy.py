"""A toy target and drafter, logit tables by the last two tokens, and the iteration's own functions run over them.

Legend: B requests, V vocabulary, K draft steps, k children, N nodes, T tokens generated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.runner.sampling import SamplingRows, choose, perturb
from frostline.speculative.accept import accept_walk
from frostline.speculative.tree import DraftTree, chain, select_tree, top_children


@dataclass(frozen=True, kw_only=True)
class Toy:
    """target and drafter: logits [V * V, V] after the two tokens `context = before * V + last`."""

    target: Tensor
    drafter: Tensor

    @property
    def vocab(self) -> int:
        return self.target.shape[1]

    def after(self, context: Tensor, token: Tensor) -> Tensor:
        return context % self.vocab * self.vocab + token


def toy(vocab: int, *, seed: int, dtype: torch.dtype = torch.float32, apart: float = 1.0) -> Toy:
    """Random tables; the drafter is the target plus noise of scale `apart`."""
    rng = torch.Generator().manual_seed(seed)
    target = torch.randn(vocab * vocab, vocab, generator=rng, dtype=dtype) * 1.5
    other = torch.randn(vocab * vocab, vocab, generator=rng, dtype=dtype) * apart
    return Toy(target=target, drafter=target + other)


def sampling_rows(
    seed: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> SamplingRows:
    """The same parameters for every seed."""

    def full(value: float) -> Tensor:
        return torch.full(seed.shape, value, dtype=dtype)

    return SamplingRows(
        temperature=full(temperature),
        top_k=torch.full(seed.shape, top_k),
        top_p=full(top_p),
        min_p=full(min_p),
        seed=seed,
    )


def plain(game: Toy, rows: SamplingRows, context_B: Tensor, position_B: Tensor, length: int) -> Tensor:
    """Token-by-token decoding: [B, T], the first one at `position_B`."""
    tokens = []
    for step in range(length):
        score = perturb(game.target[context_B], rows, position_B + step, sampled=True, filtered=True)
        tokens.append(choose(score))
        context_B = game.after(context_B, tokens[-1])
    return torch.stack(tokens, dim=1)


Draft = Callable[[Toy, SamplingRows, Tensor, Tensor], DraftTree]


def coupled(steps: int, topk: int, nodes: int) -> Draft:
    """Drafts by the rule itself: the drafter's logits under the noise that verification will use."""

    def draft(game: Toy, rows: SamplingRows, context_B: Tensor, position_B: Tensor) -> DraftTree:
        bonus_B = context_B % game.vocab
        requests = len(bonus_B)
        score, token = _children(game, rows, context_B, position_B, topk)
        level = [(token, score, torch.full_like(token, -1))]
        frontier, offset = torch.arange(topk).expand_as(token), 0
        context_Bk = game.after(context_B[:, None], token)
        for step in range(1, steps):
            value, child = _children(
                game, rows.repeat(topk), context_Bk.flatten(), (position_B + step).repeat_interleave(topk), topk
            )
            total = (value.view(requests, topk, topk) + score[:, :, None]).flatten(1)
            child = child.view(requests, topk * topk)
            level.append((child, total, (offset + frontier).repeat_interleave(topk, dim=1)))
            offset = sum(part[0].shape[1] for part in level[:-1])
            score, frontier = top_children(total, topk)
            context_Bk = game.after(context_Bk.gather(1, frontier // topk), child.gather(1, frontier))
        token, score, parent = (torch.cat(part, dim=1) for part in zip(*level, strict=True))
        depth = torch.cat([torch.full_like(part[0], i + 1) for i, part in enumerate(level)], dim=1)
        if topk == 1:
            return chain(bonus_B, token)
        return select_tree(bonus_B, token, score, parent, depth, nodes)

    return draft


def _children(game: Toy, rows: SamplingRows, context_R: Tensor, position_R: Tensor, k: int) -> tuple[Tensor, Tensor]:
    score = perturb(game.drafter[context_R], rows, position_R, sampled=True, filtered=True)
    return top_children(score.log_softmax(dim=-1), k)


def garbage(steps: int, topk: int, nodes: int, *, seed: int) -> Draft:
    """Drafts that know nothing: random distinct siblings, random scores that fall with depth."""
    rng = torch.Generator().manual_seed(seed)

    def draft(game: Toy, rows: SamplingRows, context_B: Tensor, position_B: Tensor) -> DraftTree:
        requests = len(context_B)
        if topk == 1:
            drafts = torch.randint(game.vocab, (requests, steps), generator=rng)
            return chain(context_B % game.vocab, drafts)
        tokens, scores, parents, depths = [], [], [], []
        parent, above = torch.full((requests, 1), -1), torch.zeros(requests, 1)
        for step in range(steps):
            width, first = parent.shape[1], sum(part.shape[1] for part in tokens)
            random = torch.rand(requests, width, game.vocab, generator=rng)
            tokens.append(random.argsort(dim=-1)[..., :topk].flatten(1))
            scores.append((above[..., None] - torch.rand(requests, width, topk, generator=rng)).flatten(1))
            parents.append(parent.repeat_interleave(topk, dim=1))
            depths.append(torch.full_like(tokens[-1], step + 1))
            pick = torch.rand(requests, width * topk, generator=rng).argsort(dim=1)[:, :topk]
            parent, above = first + pick, scores[-1].gather(1, pick)
        parts = (torch.cat(part, dim=1) for part in (tokens, scores, parents, depths))
        return select_tree(context_B % game.vocab, *parts, nodes)

    return draft


def speculate(
    game: Toy,
    rows: SamplingRows,
    context_B: Tensor,
    position_B: Tensor,
    length: int,
    draft: Draft,
    steps: int,
    cap_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draft, verify, accept until all have `length` tokens: those tokens [B, T], and drafts accepted at first [B]."""
    requests = len(context_B)
    cap_B = torch.full((requests,), steps) if cap_B is None else cap_B
    out = torch.zeros(requests, length + steps + 1, dtype=torch.int64)
    count_B1, first = torch.zeros(requests, 1, dtype=torch.int64), None
    for _ in range(length):
        position_next = position_B + count_B1[:, 0]
        tree = draft(game, rows, context_B, position_next)
        nodes = tree.token_BN.shape[1]
        context_BN = _node_contexts(game, tree, context_B)
        score = perturb(
            game.target[context_BN.flatten()],
            rows.repeat(nodes),
            (position_next[:, None] + tree.depth_BN).flatten(),
            sampled=True,
            filtered=True,
        )
        choice_BN = choose(score).view(requests, nodes)
        path, accepted = accept_walk(tree, choice_BN, cap_B, steps)
        first = accepted if first is None else first
        slot = (count_B1 + torch.arange(steps + 1)).clamp(max=length + steps)
        run = choice_BN.gather(1, path)
        fresh = torch.arange(steps + 1) <= accepted[:, None]
        out.scatter_(1, slot, torch.where(fresh, run, out.gather(1, slot)))
        last = path.gather(1, accepted[:, None])
        context_B = game.after(context_BN.gather(1, last), choice_BN.gather(1, last))[:, 0]
        count_B1 = (count_B1 + accepted[:, None] + 1).clamp(max=length)
        context_B = torch.where(count_B1[:, 0] < length, context_B, 0)
    assert first is not None and bool((count_B1 == length).all())
    return out[:, :length], first


def _node_contexts(game: Toy, tree: DraftTree, context_B: Tensor) -> Tensor:
    """What the target has read at each node, following the node's own parents."""
    contexts = [context_B]
    for node in range(1, tree.token_BN.shape[1]):
        above = torch.stack(contexts, dim=1).gather(1, tree.parent_BN[:, node : node + 1])[:, 0]
        contexts.append(game.after(above, tree.token_BN[:, node]))
    return torch.stack(contexts, dim=1)
