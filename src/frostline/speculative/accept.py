"""Acceptance: walk the verified tree for as long as the token chosen at a node is one of its drafted children.

What it is for: finding the accepted path of each request. What it does not know: how tokens are chosen; greedy and
sampled rows are the same here, because the choice at a node is already the token that plain decoding would emit.

Legend: B requests, N nodes, K draft steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.speculative.tree import DraftTree


def accept_walk(tree: DraftTree, choice_BN: Tensor, depth_cap_B: Tensor, num_steps: int) -> tuple[Tensor, Tensor]:
    """Accepted path int64 [B, K + 1] (node index at each depth, from the root) and accepted drafts int64 [B], 0 to K.

    choice_BN: int64, the token that the rule emits after each node. depth_cap_B: a request's own draft depth; drafts
    below it are not accepted even when they are right. The path is padded with the last accepted node, so
    `choice_BN.gather(1, path)` holds the run in its first `accepted + 1` columns, the new bonus token last.
    """
    node_B1 = torch.zeros_like(choice_BN[:, :1])
    accepted_B1 = torch.zeros_like(node_B1)
    path = [node_B1]
    for depth in range(1, num_steps + 1):
        wanted_B1 = choice_BN.gather(1, node_B1)
        match_BN = (tree.parent_BN == node_B1) & (tree.token_BN == wanted_B1) & (depth <= depth_cap_B)[:, None]
        # A walk that stopped finds no match again: same node, same choice, and a cap once passed stays passed.
        found_B1, child_B1 = match_BN.to(torch.uint8).max(dim=1, keepdim=True)
        node_B1 = torch.where(found_B1 > 0, child_B1, node_B1)
        accepted_B1 = accepted_B1 + found_B1
        path.append(node_B1)
    return torch.cat(path, dim=1), accepted_B1[:, 0]
