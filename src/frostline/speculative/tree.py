"""The drafted tree: which candidates are verified, and how the chosen nodes hang together.

What it is for: turning scored candidates (or a chain of drafts) into the N nodes of one verify forward, parents before
children. What it does not know: models, logits, sampling, KV. Nothing here affects what is emitted, only how much of it
one iteration emits; the layout of candidates follows speculation.md 1.4.

Legend: B requests, N nodes (node 0 is the bonus token), M candidates, K draft steps, R rows, C children to pick from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD_BITS = 64


@dataclass(frozen=True, kw_only=True)
class DraftTree:
    """N nodes per request, all int64 [B, N]. Parents come before their children.

    token: node 0 is the bonus token. parent: node index, -1 at the root (and at a node whose parent was not selected,
    which nothing reaches). depth: 0 at the root. ancestors: bit j is set when node j is the node itself or above it.
    """

    token_BN: Tensor
    parent_BN: Tensor
    depth_BN: Tensor
    ancestors_BN: Tensor


def top_children(score_RC: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best scores of each row in descending order and their indices, [R, k] each; lower index first on ties.

    The indices are distinct even where fewer than k scores are above -inf, so siblings never repeat a token.
    """
    assert 1 <= k <= int(score_RC.shape[-1]), (k, score_RC.shape)
    if k == 1:
        index_R1 = score_RC.argmax(dim=-1, keepdim=True)
        return score_RC.gather(1, index_R1), index_R1
    # -inf marks what is taken, so candidates at -inf are lifted to the lowest finite value, still below the rest.
    left_RC = score_RC.clamp(min=torch.finfo(score_RC.dtype).min)
    taken = []
    for _ in range(k):
        index_R1 = left_RC.argmax(dim=-1, keepdim=True)
        left_RC.scatter_(1, index_R1, -torch.inf)
        taken.append(index_R1)
    index_Rk = torch.cat(taken, dim=1)
    return score_RC.gather(1, index_Rk), index_Rk


def select_tree(
    bonus_B: Tensor,
    cand_token_BM: Tensor,
    cand_score_BM: Tensor,
    cand_parent_BM: Tensor,
    cand_depth_BM: Tensor,
    num_nodes: int,
) -> DraftTree:
    """The best `num_nodes - 1` candidates by score, ties to the lower index, in ascending index order below the root.

    cand_score_BM: float, never above the parent's score, so that a selected candidate's parent is selected too.
    cand_parent_BM: candidate index of the parent, lower than its child's; -1 means the root. cand_depth_BM: 1 for the
    root's children. Tokens, parents and depths are int64.
    """
    candidates = int(cand_token_BM.shape[1])
    assert 1 <= num_nodes <= min(candidates + 1, WORD_BITS), (num_nodes, candidates)
    order_BM = cand_score_BM.sort(dim=1, descending=True, stable=True).indices
    chosen_Bn = order_BM[:, : num_nodes - 1].sort(dim=1).values

    node_n = torch.arange(1, num_nodes, device=bonus_B.device).expand_as(chosen_Bn)
    # Slot 0 stands for the root (candidate -1); a candidate that was left out has no node.
    node_of_BM1 = torch.full((len(bonus_B), candidates + 1), -1, dtype=torch.int64, device=bonus_B.device)
    node_of_BM1[:, 0] = 0
    node_of_BM1.scatter_(1, chosen_Bn + 1, node_n)
    parent_Bn = node_of_BM1.gather(1, cand_parent_BM.gather(1, chosen_Bn) + 1)

    root_B1 = torch.zeros_like(bonus_B)[:, None]
    parent_BN = torch.cat((root_B1 - 1, parent_Bn), dim=1)
    return DraftTree(
        token_BN=torch.cat((bonus_B[:, None], cand_token_BM.gather(1, chosen_Bn)), dim=1),
        parent_BN=parent_BN,
        depth_BN=torch.cat((root_B1, cand_depth_BM.gather(1, chosen_Bn)), dim=1),
        ancestors_BN=_ancestors(parent_BN),
    )


def chain(bonus_B: Tensor, drafts_BK: Tensor) -> DraftTree:
    """The tree of k = 1: draft i hangs under draft i - 1. drafts_BK may have K = 0 columns (plain decoding)."""
    requests, steps = map(int, drafts_BK.shape)
    assert steps < WORD_BITS, steps
    node_N = torch.arange(steps + 1, device=bonus_B.device)
    bit_N = torch.ones_like(node_N) << node_N
    return DraftTree(
        token_BN=torch.cat((bonus_B[:, None], drafts_BK), dim=1),
        parent_BN=(node_N - 1).repeat(requests, 1),
        depth_BN=node_N.repeat(requests, 1),
        ancestors_BN=((bit_N - 1) | bit_N).repeat(requests, 1),
    )


def _ancestors(parent_BN: Tensor) -> Tensor:
    """Ancestor words [B, N] by pointer doubling: after pass i a word covers the nearest 2^i nodes up, self included."""
    nodes = int(parent_BN.shape[1])
    node_N = torch.arange(nodes, device=parent_BN.device)
    word_BN = (torch.ones_like(node_N) << node_N).expand_as(parent_BN)
    above_BN = torch.where(parent_BN < 0, node_N, parent_BN)
    for _ in range((nodes - 1).bit_length()):
        word_BN = word_BN | word_BN.gather(1, above_BN)
        above_BN = above_BN.gather(1, above_BN)
    return word_BN
