"""Drafting over frozen keys and values: the assistant proposes a chain or a tree of tokens for every request.

The drafter reads the target's rows `[0, P)` from one constant position and writes nothing. Its logits go through the
target's own sampling rule with the target's own noise (architecture 4.3), so at a temperature above 0 the children of a
node are the best of its perturbed logits; nothing here can change what is emitted, only how much an iteration emits.

B requests, F frontier nodes, A drafted tokens of a path, k children, C candidate tokens, M scored nodes, E backbone
width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from frostline.cache.pool import KVCache
from frostline.model.assistant import Assistant
from frostline.model.attention import FrozenContext
from frostline.model.decoder import Decoder
from frostline.runner.processing import Paths
from frostline.runner.rows import Rows
from frostline.runner.sampling import choose
from frostline.speculative.pair import Pair
from frostline.speculative.plan import Plan
from frostline.speculative.scoring import Scorer
from frostline.speculative.tree import DraftTree, chain, select_tree, top_children
from frostline.types import Group


def draft(
    pair: Pair,
    cache: KVCache,
    rows: Rows,
    rows_B: Tensor,
    tables: Mapping[Group, Tensor],
    plan: Plan,
    kv_bound: int,
) -> DraftTree:
    """The nodes that verify will check, root first: [B, N]."""
    bonus_B, length_B = rows.bonus.index_select(0, rows_B), rows.length.index_select(0, rows_B)
    if plan.num_steps == 0:
        return chain(bonus_B, bonus_B.new_empty((len(bonus_B), 0)))
    assert pair.assistant is not None, "a plan with draft steps needs an assistant"
    context = FrozenContext(
        cache,
        pair.target.spec,
        pair.assistant.rotary,
        tables=tables,
        length_B=length_B,
        offset=plan.draft_offset,
        kv_bound=kv_bound,
    )
    scorer = Scorer(rows, rows_B, plan, noisy=plan.coupled)
    drafter = _Drafter(pair.target, pair.assistant, context, scorer, length_B, sees_paths=plan.rules.penalties)
    hidden_B1E = rows.hidden.index_select(0, rows_B).unsqueeze(1)
    if plan.is_chain:
        return _chain(drafter, bonus_B, hidden_B1E, plan)
    return _tree(drafter, bonus_B, hidden_B1E, plan)


class _Drafter:
    """One draft step for a frontier of F nodes per request; keeps what is constant over the iteration.

    sees_paths: penalties look at what was drafted above a node; otherwise nobody does, and paths need not be kept.
    """

    def __init__(
        self,
        target: Decoder,
        assistant: Assistant,
        context: FrozenContext,
        scorer: Scorer,
        length_B: Tensor,
        *,
        sees_paths: bool,
    ) -> None:
        self._target, self._assistant, self._context = target, assistant, context
        self._scorer, self._length_B1, self.sees_paths = scorer, length_B.unsqueeze(1), sees_paths

    def __call__(self, depth: int, path: list[Tensor], hidden_BFE: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Children of the frontier nodes at `depth`: (scores [B * F, C], token ids or None, next hidden [B, F, E]).

        path: a token tensor per level, the root's [B, 1] first and the frontier's own [B, F] last; those between are
        [B, F] too, each the frontier's ancestors, where paths are seen.
        """
        token_BF = path[-1]
        u, hidden = self._assistant.step(self._target.embed(token_BF), hidden_BFE, self._context)
        found = self._assistant.head(u.flatten(0, 1))
        position_BF = (self._length_B1 + depth).expand(-1, int(token_BF.shape[1]))
        paths = None
        if len(path) > 1 and self.sees_paths:
            drafted_BFA = torch.stack(path[1:], dim=2)
            paths = Paths(token=drafted_BFA, counts=torch.ones_like(drafted_BFA, dtype=torch.bool))
        return self._scorer(found.logits, position_BF, found.token_ids, paths), found.token_ids, hidden


def _named(index: Tensor, token_ids: Tensor | None) -> Tensor:
    return index if token_ids is None else token_ids.gather(1, index)


def _chain(drafter: _Drafter, bonus_B: Tensor, hidden_B1E: Tensor, plan: Plan) -> DraftTree:
    path = [bonus_B.unsqueeze(1)]
    for depth in range(plan.num_steps):
        scores, ids, hidden_B1E = drafter(depth, path, hidden_B1E)
        path.append(_named(choose(scores).unsqueeze(1), ids))
    return chain(bonus_B, torch.cat(path[1:], dim=1))


def _tree(drafter: _Drafter, bonus_B: Tensor, hidden_B1E: Tensor, plan: Plan) -> DraftTree:
    """EAGLE-2 style growth (arXiv 2406.16858): expand the k best nodes of each level, then keep the best N - 1 of all.

    A node's score is the sum of its path's log-probabilities, greedy, or of the same over perturbed logits otherwise;
    it never exceeds its parent's, so a kept node's ancestors are kept too.
    """
    k, batch = plan.topk, len(bonus_B)
    path, hidden = [bonus_B.unsqueeze(1)], hidden_B1E
    score = torch.zeros_like(path[0], dtype=torch.float64)
    index = torch.full_like(path[0], -1)
    tokens, cumulative, parents, depths = [], [], [], []
    offset = 0
    for depth in range(plan.num_steps):
        width = int(path[-1].shape[1])
        raw, ids, next_hidden = drafter(depth, path, hidden)
        log_score = raw.log_softmax(-1)
        if plan.rules.masks:
            # A head that gives few candidates may have all of them masked, and log_softmax over -inf alone is NaN.
            log_score = log_score.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        value, child = top_children(log_score, k)
        child_score = (score.unsqueeze(2) + value.view(batch, width, k)).flatten(1)
        child_token = _named(child, ids).view(batch, width * k)
        tokens.append(child_token)
        cumulative.append(child_score)
        parents.append(index.repeat_interleave(k, dim=1))
        depths.append(torch.full_like(child_token, depth + 1))
        if depth + 1 == plan.num_steps:
            break
        score, best = top_children(child_score, k)
        origin = best.div(k, rounding_mode="floor")
        above = [level.gather(1, origin) for level in path[1:]] if drafter.sees_paths else path[1:]
        path = [path[0], *above, child_token.gather(1, best)]
        hidden = next_hidden.gather(1, origin.unsqueeze(2).expand(-1, -1, int(next_hidden.shape[2])))
        index = best + offset
        offset += width * k
    return select_tree(
        bonus_B,
        torch.cat(tokens, dim=1),
        torch.cat(cumulative, dim=1),
        torch.cat(parents, dim=1),
        torch.cat(depths, dim=1),
        plan.verify_width,
    )
