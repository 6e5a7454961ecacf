"""One iteration as a function of device state: draft, verify, accept, compact, seed (architecture 4.1).

It reads and writes only row-indexed tensors and KV pools, has shapes fixed by (batch, plan, kv_bound), and never waits
for the device. Emitted tokens do not depend on the drafts: each node's token is chosen by the one sampling rule, and
the walk only decides how many of them this iteration may emit.

B requests, N nodes, K steps, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.cache.pool import KVCache
from frostline.model.attention import PagedContext, TreeRows, slots_of
from frostline.runner.logprobs import TokenScores, score_tokens
from frostline.runner.rows import Rows
from frostline.runner.sampling import choose
from frostline.runner.spans import spec_stage_span
from frostline.speculative.accept import accept_walk
from frostline.speculative.draft import draft
from frostline.speculative.pair import Pair
from frostline.speculative.plan import Plan
from frostline.speculative.scoring import Scorer, paths_of
from frostline.speculative.tree import DraftTree
from frostline.types import Group


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one iteration committed: tokens [B, K + 1], the first count [B] of them real, the last real one the bonus.

    finite [B]: False where the accepted rows' hidden states held NaN or infinity. tree: the nodes that were verified.
    scores: of the tokens, [B, K + 1] and [B, K + 1, k], when the plan asks for log-probabilities.
    """

    tokens_BK: Tensor
    count_B: Tensor
    finite_B: Tensor
    tree: DraftTree
    scores: TokenScores | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        """All of it as a flat tuple, as a recording returns it."""
        tree = self.tree
        nodes = tree.token_BN, tree.parent_BN, tree.depth_BN, tree.ancestors_BN
        return self.tokens_BK, self.count_B, self.finite_B, *nodes, *(self.scores or ())

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...]) -> Run:
        """The inverse of `tensors`."""
        tokens_BK, count_B, finite_B, token_BN, parent_BN, depth_BN, ancestors_BN, *scores = tensors
        tree = DraftTree(token_BN=token_BN, parent_BN=parent_BN, depth_BN=depth_BN, ancestors_BN=ancestors_BN)
        return cls(
            tokens_BK=tokens_BK,
            count_B=count_B,
            finite_B=finite_B,
            tree=tree,
            scores=TokenScores(*scores) if scores else None,
        )


def iterate(pair: Pair, cache: KVCache, rows: Rows, rows_B: Tensor, plan: Plan, kv_bound: int) -> Run:
    """Advance the requests in rows_B [B] by one run each. kv_bound: a host value, at least `P + N` of each of them."""
    tables, length_B = rows.batch_tables(rows_B), rows.length.index_select(0, rows_B)
    device = rows_B.device.type
    with spec_stage_span("draft", device):
        tree = draft(pair, cache, rows, rows_B, tables, plan, kv_bound)
    with spec_stage_span("verify", device):
        hidden_BND, logits_BNV, choice_BN = _verify(pair, cache, rows, rows_B, tables, tree, plan, kv_bound)
    with spec_stage_span("accept", device):
        path_BK, accepted_B = accept_walk(tree, choice_BN, rows.depth.index_select(0, rows_B), plan.num_steps)
        if not plan.is_chain:
            _compact(cache, tables, length_B, path_BK, accepted_B)
    with spec_stage_span("seed", device):
        tokens_BK = choice_BN.gather(1, path_BK)
        accepted_B1 = accepted_B.unsqueeze(1)
        if plan.rules.penalties:
            depth_K = torch.arange(int(path_BK.shape[1]), device=path_BK.device)
            rows.rules.count(rows_B, tokens_BK, depth_K <= accepted_B1)
        path_hidden = hidden_BND.gather(1, path_BK.unsqueeze(2).expand(-1, -1, int(hidden_BND.shape[2])))
        # The path is padded with its last node, so its last row is the last accepted one.
        rows.seed(rows_B, length_B + accepted_B + 1, tokens_BK.gather(1, accepted_B1).squeeze(1), path_hidden[:, -1])
        scores = None if plan.logprobs < 0 else _scores(logits_BNV, path_BK, tokens_BK, plan.logprobs)
    return Run(
        tokens_BK=tokens_BK,
        count_B=accepted_B + 1,
        finite_B=path_hidden.isfinite().flatten(1).all(1),
        tree=tree,
        scores=scores,
    )


def _verify(
    pair: Pair,
    cache: KVCache,
    rows: Rows,
    rows_B: Tensor,
    tables: Mapping[Group, Tensor],
    tree: DraftTree,
    plan: Plan,
    kv_bound: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """One target forward over all nodes: hidden [B, N, D], raw logits [B, N, V], the rule's token after each [B, N]."""
    target, length_B, width = pair.target, rows.length.index_select(0, rows_B), plan.verify_width
    context = PagedContext(
        cache,
        target.spec,
        target.rotary,
        tables=tables,
        base_B=length_B,
        width=width,
        kv_bound=kv_bound,
        tree=None if plan.is_chain else TreeRows(depth_BN=tree.depth_BN, ancestors_BN=tree.ancestors_BN),
    )
    hidden = target(tree.token_BN, context)
    paths = paths_of(tree) if plan.rules.penalties else None
    logits = target.logits(hidden)
    scores = Scorer(rows, rows_B, plan)(logits.flatten(0, 1), context.positions_BQ, paths=paths)
    return hidden, logits, choose(scores).view(-1, width)


def _scores(logits_BNV: Tensor, path_BK: Tensor, tokens_BK: Tensor, top: int) -> TokenScores:
    """Log-probabilities of the run's tokens, [B, K + 1], from the raw logits of the accepted path."""
    batch, width = map(int, logits_BNV.shape[:2])
    row_BK = path_BK + torch.arange(batch, device=path_BK.device).unsqueeze(1) * width
    logits_RV = logits_BNV.flatten(0, 1).index_select(0, row_BK.flatten())
    return score_tokens(logits_RV, tokens_BK.flatten(), top).view(batch, int(tokens_BK.shape[1]))


def _compact(
    cache: KVCache, tables: Mapping[Group, Tensor], length_B: Tensor, path_BK: Tensor, accepted_B: Tensor
) -> None:
    """Move the accepted nodes' rows to the first rows above the frost line, in every layer of both pools.

    Bounded by the path's width, not the tree's. Past the accepted depth a row is copied onto itself.
    """
    depth_K = torch.arange(1, int(path_BK.shape[1]), device=path_BK.device)
    kept = depth_K <= accepted_B.unsqueeze(1)
    source = length_B.unsqueeze(1) + torch.where(kept, path_BK[:, 1:], depth_K)
    destination = (length_B.unsqueeze(1) + depth_K).expand_as(source)
    for group, pool in cache.pools.items():
        from_slots, to_slots = (slots_of(tables[group], row, cache.page_size) for row in (source, destination))
        pool.copy(from_slots.flatten(), to_slots.flatten())
