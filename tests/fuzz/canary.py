"""The canaries: is what an attention context shows exactly what it should show? Each answer is a fault per request [B].

Reads the gathered rows, the row indices and the mask of the real contexts. Rows are (number, layer + 1) as keys, where
a number stands for a token at a position, and (position + 1, hash) as values; a row that nobody has written is no row.

B requests, Q query rows, S gathered rows; the Q new rows are stored from row `P` on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.model.attention import PagedContext
from frostline.model.spec import LayerSpec


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one layer of a forward is shown: gathered rows [B, S, 2, 2], their indices [B, S], the mask [B, Q, S]."""

    layer: LayerSpec
    rows_BSGD: Tensor
    index_BS: Tensor
    visible_BQS: Tensor
    base_B1: Tensor
    width: int

    @classmethod
    def of(cls, context: PagedContext, layer: LayerSpec, width: int) -> Seen:
        view = context.view(layer)
        return cls(
            layer=layer,
            rows_BSGD=context.rows(layer),
            index_BS=view.row_BS,
            visible_BQS=view.mask.squeeze(1) == 0,
            base_B1=context.positions_BQ[:, :1],
            width=width,
        )

    def new_places(self) -> Tensor:
        """Where the new rows stand among the gathered ones, [B, Q]."""
        place = self.base_B1 - self.index_BS[:, :1] + torch.arange(self.width)
        return place.clamp(0, int(self.index_BS.shape[1]) - 1)

    def new_rows(self) -> Tensor:
        """Which new rows each new row sees, [B, Q, Q]."""
        return self.visible_BQS.gather(2, self.new_places().unsqueeze(1).expand(-1, self.width, -1))

    def number(self) -> Tensor:
        return self.rows_BSGD[:, :, 0, 0]

    def written_by_others(self) -> Tensor:
        """Rows that another layer wrote, or nobody [B, S]."""
        return self.rows_BSGD[:, :, 0, 1] != self.layer.index + 1

    def position(self) -> Tensor:
        return self.rows_BSGD[:, :, 1, 0] - 1

    def hash(self) -> Tensor:
        return self.rows_BSGD[:, :, 1, 1]

    def new_rows_differ(self, stored_BQGD: Tensor, real_BQ: Tensor) -> Tensor:
        """Whether some new row does not stand where it should [B]."""
        at_BQ = self.new_places()[..., None, None].expand(-1, -1, 2, 2)
        differs_BQ = (self.rows_BSGD.gather(1, at_BQ) != stored_BQGD).flatten(2).any(2)
        return (differs_BQ & real_BQ).any(1)


def base_faults(
    seen: Seen, stored_BQGD: Tensor, path_BQQ: Tensor, position_BQ: Tensor, base_B1: Tensor, real_BQ: Tensor
) -> Tensor:
    """Layer 0, full: every committed row is seen and in its place; of the new ones each query sees one path."""
    committed_BS = seen.index_BS < base_B1
    place_is_off = committed_BS & (seen.written_by_others() | (seen.position() != seen.index_BS))
    above_BS = seen.index_BS >= base_B1 + seen.width
    unseen_BQS = torch.where(seen.visible_BQS, above_BS.unsqueeze(1), committed_BS.unsqueeze(1))
    # A path of n nodes that ends at depth n - 1 visits every depth once: n equal sums and sums of squares say so.
    depth_BQ = position_BQ - base_B1
    path = path_BQQ.double()
    powers_BQ3 = torch.stack((torch.ones_like(depth_BQ), depth_BQ, depth_BQ**2), dim=-1)
    expected = torch.stack(
        (depth_BQ + 1, depth_BQ * (depth_BQ + 1) / 2, depth_BQ * (depth_BQ + 1) * (2 * depth_BQ + 1) / 6), dim=-1
    )
    no_path_BQ = (path @ powers_BQ3 != expected).any(2) | ~path_BQQ.diagonal(dim1=1, dim2=2)
    wrong_BQ = no_path_BQ | unseen_BQS.any(2)
    return place_is_off.any(1) | (wrong_BQ & real_BQ).any(1) | seen.new_rows_differ(stored_BQGD, real_BQ)


def seen_faults(
    seen: Seen,
    stored_BQGD: Tensor,
    path_BQQ: Tensor,
    position_BQ: Tensor,
    base_B1: Tensor,
    before_B1: Tensor,
    real_BQ: Tensor,
    window: int | None,
) -> Tensor:
    """Later layers: seen is the window (or all) of the query's own path, and the committed rows are one history.

    before_B1: the hash of the committed rows, from layer 0.
    """
    index_BS, visible = seen.index_BS, seen.visible_BQS
    committed_BS = index_BS < base_B1
    node_BQS = (index_BS - seen.base_B1).clamp(0, seen.width - 1).unsqueeze(1).expand(-1, seen.width, -1)
    own_BQS = path_BQQ.gather(2, node_BQS) & (index_BS < base_B1 + seen.width).unsqueeze(1)
    expected_BQS = committed_BS.unsqueeze(1) | own_BQS
    needed_BS = committed_BS
    if window is not None:
        place_BS = torch.where(committed_BS, index_BS.double(), position_BQ.gather(1, node_BQS[:, 0]))
        expected_BQS = expected_BQS & (position_BQ.unsqueeze(2) - place_BS.unsqueeze(1) < window)
        needed_BS = committed_BS & (base_B1 - index_BS < window)
    wrong_BQ = (visible != expected_BQS).any(2)
    broken = _broken_history(seen, needed_BS, before_B1, base_B1)
    return broken | (wrong_BQ & real_BQ).any(1) | seen.new_rows_differ(stored_BQGD, real_BQ)


def _broken_history(seen: Seen, needed_BS: Tensor, before_B1: Tensor, base_B1: Tensor) -> Tensor:
    """Whether the committed rows are not, one after the other, the rows of the history whose hash is before_B1 [B]."""
    hash_BS, place_BS = seen.hash(), seen.index_BS
    off_BS = seen.written_by_others() | (seen.position() != place_BS)
    last_BS = place_BS == base_B1 - 1
    off_BS = off_BS | (last_BS & (hash_BS != before_B1))
    off_BS = off_BS | _breaks(hash_BS, place_BS, seen.number(), needed_BS)
    # Too few rows were gathered if the last committed one is not among them.
    return (off_BS & needed_BS).any(1) | ~((last_BS & needed_BS).any(1) | (base_B1 == 0).squeeze(1))


def _breaks(hash_BS: Tensor, place_BS: Tensor, number_BS: Tensor, needed_BS: Tensor) -> Tensor:
    """Rows whose hash does not follow from the hash of the row before, where that one counts too, [B, S]."""
    before_BS = hash_BS - number_BS
    wrong = needed_BS & (place_BS == 0) & (before_BS != 0)
    later = needed_BS[:, 1:] & needed_BS[:, :-1] & (before_BS[:, 1:] != hash_BS[:, :-1])
    wrong[:, 1:] |= later
    return wrong


def frozen_faults(
    rows_BSGD: Tensor,
    seen_BS: Tensor,
    owner: int,
    low_B1: Tensor,
    length_B1: Tensor,
    hash_B1: Tensor,
) -> Tensor:
    """The assistant: seen are the rows `[low, P)` of the history whose seed it was given, once each and in order."""
    number, position, hash_BS = rows_BSGD[:, :, 0, 0], rows_BSGD[:, :, 1, 0] - 1, rows_BSGD[:, :, 1, 1]
    off_BS = (rows_BSGD[:, :, 0, 1] != owner + 1) | (position < low_B1) | (position >= length_B1)
    off_BS |= (position == length_B1 - 1) & (hash_BS != hash_B1)
    gap_BS = seen_BS[:, 1:] & seen_BS[:, :-1] & (position[:, 1:] != position[:, :-1] + 1)
    off_BS = (off_BS & seen_BS) | _breaks(hash_BS, position, number, seen_BS)
    # One run of consecutive positions from `low` on, as long as it should be.
    starts_B = (seen_BS[:, 1:] & ~seen_BS[:, :-1]).sum(1) + seen_BS[:, 0]
    few_B = (seen_BS.sum(1) != (length_B1 - low_B1)[:, 0]) | (starts_B > 1)
    return off_BS.any(1) | gap_BS.any(1) | few_B
