"""A target and an assistant without weights for the real device side: their logits are a function of the history alone.

The history is read back through attention. Layer 0 (full) stores a number per row and sums what it sees: the hash.
Layers 1 (sliding) and 2 (full) store (number, layer, position, hash) and check what they are shown: exactly the rows of
this very history that they should see, each of them whole. What is wrong makes the hidden state NaN, which the device
side reports for every row of every batch, recorded or not; `faults` says it in words where Python still runs.

Every number is an integer below 2^53 in float64, so all comparisons are exact.

B requests, Q query rows, S gathered rows, F frontier nodes, E = (hash, length, length at the seed, 0).
"""

from __future__ import annotations

from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from frostline.config import DraftPosition
from frostline.model.assistant import Assistant, DraftLogits
from frostline.model.attention import FrozenContext, PagedContext
from frostline.model.decoder import Decoder
from frostline.model.rope import Rotary
from frostline.model.spec import AssistantSpec, LayerSpec, ModelSpec, RopeSpec
from frostline.speculative.pair import Pair
from frostline.types import Group
from tests.fuzz.canary import Seen, base_faults, frozen_faults, seen_faults
from tests.fuzz.tables import ALARM, EOS, POISON, POSITIONS, VOCAB, bucket, tables

HIDDEN = 4
_LAYERS: tuple[tuple[Group, int], ...] = (("full", 0), ("sliding", 1), ("full", 2), ("sliding", 1), ("full", 2))


def model_spec(window: int, *, assistant: bool = False) -> ModelSpec:
    """Three layers with rows of their own and two that share them; an assistant has the last two."""
    kinds = _LAYERS[3:] if assistant else _LAYERS
    layers = tuple(
        LayerSpec(
            index=index,
            kind=kind,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            k_eq_v=False,
            kv_owner=-1 if assistant else owner,
            intermediate=1,
            window=window if kind == "sliding" else None,
        )
        for index, (kind, owner) in enumerate(kinds)
    )
    rope = RopeSpec(head_dim=2, theta=1.0, rotated=1)
    return ModelSpec(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        layers=layers,
        eps=1e-6,
        ple_dim=0,
        ple_vocab=0,
        softcap=None,
        moe=None,
        ropes={"sliding": rope, "full": rope},
        window=window,
        max_positions=POSITIONS,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_ids=EOS,
        dtype="float64",
    )


class _Fake:
    """What the device side asks of every model."""

    dtype, device = torch.float64, torch.device("cpu")

    def __init__(self, spec: ModelSpec) -> None:
        self.rotary = Rotary(spec, dtype=self.dtype, device=self.device)
        self.faults: list[str] = []

    def requires_grad_(self, wanted: bool) -> None:
        assert not wanted, "there is nothing to train"

    def prepare(self) -> None:
        """Nothing is derived from weights."""

    def _tell(self, wrong: dict[str, Tensor], healthy_B: Tensor) -> Tensor:
        """Which requests have a fault [B]; a recording has no words for it."""
        bad_B = torch.stack(list(wrong.values())).any(0) & healthy_B
        if not torch.jit.is_tracing() and bool(bad_B.any()):
            found = {name: (bad_B & healthy_B).nonzero().flatten().tolist() for name, bad_B in wrong.items()}
            self.faults += [
                f"{type(self).__name__}: {name} in rows {rows} of a batch" for name, rows in found.items() if rows
            ]
        return bad_B


class FakeTarget(_Fake):
    """checked False: no canaries, for the plain runs that others are compared with."""

    def __init__(self, window: int, *, checked: bool = True) -> None:
        self._checks = checked
        self.spec = model_spec(window)
        super().__init__(self.spec)
        self._tables = tables()

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.stack((tokens.double(), *[torch.zeros_like(tokens).double()] * (HIDDEN - 1)), dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._tables.target[bucket(hidden[..., 0])]

    def __call__(self, tokens: Tensor, context: PagedContext, last: Tensor | None = None) -> Tensor:
        first, *others = self.spec.layers[:3]
        position = context.positions_BQ
        position_BQ, base_B1 = position.double(), position[:, :1].double()
        number_BQ = self._tables.number[position, tokens].masked_fill(tokens == POISON, torch.nan)
        length_B = context._length_B
        width = int(tokens.shape[1])
        node_Q = torch.arange(width)
        real_BQ = torch.ones_like(tokens, dtype=torch.bool) if length_B is None else node_Q < length_B.unsqueeze(1)

        stored = _rows(number_BQ, first, position_BQ, number_BQ)
        mean_BQD = context.attend(first, _queries(tokens), stored)
        hash_BQ = (mean_BQD[..., 1] * (position_BQ + 1)).round()
        if not self._checks:
            for layer in others:
                context.attend(layer, _queries(tokens), _rows(number_BQ, layer, position_BQ, hash_BQ))
            hidden = self._hidden(hash_BQ, position_BQ)
            return hidden if last is None else hidden[torch.arange(len(last)), last].unsqueeze(1)
        seen = Seen.of(context, first, width)
        path_BQQ = seen.new_rows()
        wrong = {"layer 0": base_faults(seen, stored, path_BQQ, position_BQ, base_B1, real_BQ)}
        before_B1 = (hash_BQ - number_BQ)[:, :1]
        for layer in others:
            stored = _rows(number_BQ, layer, position_BQ, hash_BQ)
            mean_BQD = context.attend(layer, _queries(tokens), stored)
            seen = Seen.of(context, layer, width)
            window = self.spec.window if layer.kind == "sliding" else None
            wrong[f"layer {layer.index}"] = seen_faults(
                seen, stored, path_BQQ, position_BQ, base_B1, before_B1, real_BQ, window
            ) | (_mean_is_off(mean_BQD, position_BQ, window) & real_BQ).any(1)
        sick_BQ = hash_BQ.isnan()
        hidden = self._hidden(hash_BQ, position_BQ)
        if last is not None:
            picked, at_B = context.pick(last), torch.arange(len(last))
            place_B1, sick_BQ = position_BQ[at_B, last].unsqueeze(1), sick_BQ[at_B, last].unsqueeze(1)
            hidden = hidden[at_B, last].unsqueeze(1)
            for layer in self.spec.layers[3:]:
                mean_B1D = picked.attend(layer, _queries(place_B1), None)
                window = self.spec.window if layer.kind == "sliding" else None
                turned = _turn_is_off(picked.rope(layer)[0], place_B1)
                wrong[f"picked {layer.kind}"] = (_mean_is_off(mean_B1D, place_B1, window) | turned).any(1)
        # A history with a poisoned token is NaN by right, and what it left is for others to find.
        healthy_B = ~(sick_BQ.any(1))
        bad_B = self._tell(wrong, healthy_B)
        return hidden.masked_fill(bad_B.view(-1, 1, 1), torch.nan)

    def _hidden(self, hash_BQ: Tensor, position_BQ: Tensor) -> Tensor:
        return torch.stack((hash_BQ, position_BQ + 1, position_BQ + 1, torch.zeros_like(hash_BQ)), dim=-1)


class FakeAssistant(_Fake):
    """position: the constant one that it expects, "auto" for either. narrow: its head names candidates of its own."""

    def __init__(self, window: int, *, position: DraftPosition, narrow: bool) -> None:
        text = model_spec(window, assistant=True)
        super().__init__(text)
        self.spec = AssistantSpec(
            text=text,
            backbone_size=HIDDEN,
            num_centroids=0,
            top_centroids=0,
            draft_position=None if position == "auto" else position,
        )
        self._tables, self._narrow, self._window = tables(), narrow, window
        self._offset = {"P": 0, "P-1": -1, "auto": None}[position]
        self._checked: WeakKeyDictionary[FrozenContext, Tensor] = WeakKeyDictionary()

    def step(self, embedding: Tensor, hidden: Tensor, context: FrozenContext) -> tuple[Tensor, Tensor]:
        """u [B, F, 2] is (hash with the token, alarm); the next hidden goes on from it."""
        if context not in self._checked:
            self._checked[context] = self._look(hidden[:, :1], context)
        token, place = embedding[..., 0].long(), hidden[..., 1].nan_to_num(0.0).long()
        hash_BF = hidden[..., 0] + self._tables.number[place, token]
        alarm_BF = self._checked[context].double().unsqueeze(1).expand_as(hash_BF)
        after = torch.stack((hash_BF, hidden[..., 1] + 1, hidden[..., 2], hidden[..., 3]), dim=-1)
        return torch.stack((hash_BF, alarm_BF), dim=-1), after

    def head(self, u_R2: Tensor) -> DraftLogits:
        at_R = bucket(u_R2[:, 0])
        logits_RV = self._tables.draft[at_R]
        logits_RV[:, ALARM] += u_R2[:, 1] * 1e9
        if not self._narrow:
            return DraftLogits(logits=logits_RV, token_ids=None)
        ids_RC = self._tables.candidates[at_R]
        return DraftLogits(logits=logits_RV.gather(1, ids_RC), token_ids=ids_RC)

    def _look(self, hidden_B1E: Tensor, context: FrozenContext) -> Tensor:
        """Faults [B] of what the context shows to the first step, which every later one is shown again."""
        wrong = {}
        hash_B1, length_B1 = hidden_B1E[..., 0], hidden_B1E[..., 1]
        # Where either position is right the context says which one it means; rope and window must mean the same.
        own_B1 = (context._position_B - context._length_B).unsqueeze(1)
        offset_B1 = own_B1 if self._offset is None else torch.full_like(own_B1, self._offset)
        position_B1 = length_B1 + offset_B1
        wrong["position"] = ((offset_B1 != 0) & (offset_B1 != -1)).any(1)
        for layer in self.spec.text.layers:
            mean_B1D = context.attend(layer, _queries(length_B1), None)
            rows_BSGD, mask_B1S = context._gathered[layer.kind]
            window = self._window if layer.kind == "sliding" else None
            low_B1 = torch.zeros_like(length_B1) if window is None else (position_B1 - window + 1).clamp(min=0)
            wrong[layer.kind] = frozen_faults(
                rows_BSGD, mask_B1S[:, 0] == 0, _LAYERS[3 + layer.index][1], low_B1, length_B1, hash_B1
            ) | ((mean_B1D[..., 0] - (low_B1 + length_B1 + 1) / 2).abs() > 1e-6).any(1)
            wrong[f"rope {layer.kind}"] = _turn_is_off(context.rope(layer)[0], position_B1).any(1)
        healthy_B = ~hash_B1.isnan().any(1) & (length_B1 > 0).all(1)
        return self._tell(wrong, healthy_B)


def fake_pair(
    *, window: int, position: DraftPosition = "P", narrow: bool = False, checked: bool = True
) -> tuple[Pair, FakeTarget, FakeAssistant]:
    target, assistant = FakeTarget(window, checked=checked), FakeAssistant(window, position=position, narrow=narrow)
    pair = Pair(target=cast(Decoder, target), assistant=cast(Assistant, assistant))
    return pair, target, assistant


def _queries(like_BQ: Tensor) -> Tensor:
    """Queries of zeros: attention is then the mean over what is visible."""
    return torch.zeros(*map(int, like_BQ.shape), 1, 2, dtype=torch.float64)


def _rows(number_BQ: Tensor, layer: LayerSpec, position_BQ: Tensor, hash_BQ: Tensor) -> Tensor:
    """What a layer stores: the key is (number, layer + 1), the value (position + 1, hash); layer 0 has no hash yet."""
    tag = torch.full_like(number_BQ, layer.index + 1)
    return torch.stack((number_BQ, tag, position_BQ + 1, hash_BQ), dim=-1).view(*map(int, number_BQ.shape), 2, 2)


def _mean_is_off(mean_BQD: Tensor, position_BQ: Tensor, window: int | None) -> Tensor:
    """Whether attention's own output is not the mean position of the visible rows [B, Q]."""
    low_BQ = torch.zeros_like(position_BQ) if window is None else (position_BQ - window + 1).clamp(min=0)
    return ~((mean_BQD[..., 0] - ((low_BQ + position_BQ) / 2 + 1)).abs() < 1e-6)


def _turn_is_off(cos: Tensor, position_BQ: Tensor) -> Tensor:
    """Whether rope turns by another angle than the position's: a full turn of these fakes is 2 pi positions."""
    return (cos[..., 0, 0] - position_BQ.cos()).abs() > 1e-9
