"""The assistant (drafter) of a Gemma 4 pair: query-only layers over the target's keys and values (gemma4.md section 3).

B requests, Q frontier rows, E backbone width (the target's hidden size), d the assistant's own width, V vocabulary,
C centroids. It owns no KV, has no prefill and no "extend" forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frostline.kernels.reference import at_least_float32
from frostline.model.attention import AttentionContext
from frostline.model.decoder import DecoderLayer, prepare_parts
from frostline.model.layers import Embedding, RMSNorm
from frostline.model.rope import Rotary
from frostline.model.spec import AssistantSpec, ModelSpec
from frostline.parallel.group import SOLO, ParallelGroup
from frostline.parallel.linear import ColumnLinear, RowLinear


@dataclass(frozen=True, kw_only=True)
class DraftLogits:
    """Logits over candidate tokens [R, c], at least float32, and their ids [R, c]; None: the whole vocabulary."""

    logits: Tensor
    token_ids: Tensor | None


class CentroidHead(nn.Module):
    """Scores of vocabulary clusters and the order of tokens in them; the logits come from the tied embedding."""

    token_ordering: Tensor

    def __init__(self, spec: AssistantSpec, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        text = spec.text
        self.centroids = ColumnLinear(text.hidden_size, spec.num_centroids, group=group, dtype=dtype, device=device)
        self.register_buffer("token_ordering", torch.empty(text.vocab_size, dtype=torch.int64, device=device))


class Assistant(nn.Module):
    """Drafts from the target's embedding of the newest token and a hidden state of the backbone's width."""

    def __init__(
        self,
        spec: AssistantSpec,
        target: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        group: ParallelGroup = SOLO,
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.spec, self.target_spec, self.group = spec, target, group
        text, size = spec.text, spec.text.hidden_size
        self.pre_projection = ColumnLinear(2 * spec.backbone_size, size, group=group, dtype=dtype, device=device)
        self.post_projection = RowLinear(size, spec.backbone_size, group=group, dtype=dtype, device=device)
        self.embed_tokens = Embedding(text.vocab_size, size, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            DecoderLayer(text, layer, group=group, dtype=dtype, device=device) for layer in text.layers
        )
        self.norm = RMSNorm(size, text.eps, dtype=dtype, device=device)
        if spec.ordered:
            self.masked_embedding = CentroidHead(spec, group=group, dtype=dtype, device=device)
        self._by_centroid: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def prepare(self) -> None:
        """Build what is derived from weights: rope, and the head's rows in centroid order, [C, V / C, d].

        The tied table itself keeps the vocabulary's order, so that it can still be saved and read by token id.
        """
        self.rotary = Rotary(self.spec.text, dtype=self.dtype, device=self.device)
        prepare_parts(self)
        if self.spec.ordered:
            ordered = self.embed_tokens.weight.detach()[self.masked_embedding.token_ordering]
            self._by_centroid = ordered.view(self.spec.num_centroids, -1, ordered.shape[1])

    def step(self, embedding: Tensor, hidden: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        """One draft step.

        embedding [B, Q, E]: the target's scaled embedding of the newest token. hidden [B, Q, E]: the target's
        post-final-norm hidden at the first step, the second value returned here afterwards.
        Returns (u [B, Q, d] post-norm, next hidden [B, Q, E]).
        """
        x = self.pre_projection(torch.cat((embedding, hidden), dim=-1))
        for layer in self.layers:
            x = layer(x, None, context)
        u = self.norm(x)
        return u, self.post_projection(u)

    def dense_logits(self, u: Tensor) -> Tensor:
        """Logits over the whole vocabulary [..., V], at least float32; no softcap (gemma4.md 3.1)."""
        return at_least_float32(nn.functional.linear(u, self.embed_tokens.weight))

    def head(self, u_Rd: Tensor) -> DraftLogits:
        """Candidate logits: the whole vocabulary, or the tokens of the best centroids, never scattered to it."""
        if not self.spec.ordered:
            return DraftLogits(logits=self.dense_logits(u_Rd), token_ids=None)
        assert self._by_centroid is not None, "prepare() must run after the weights are in place"
        best = self.masked_embedding.centroids(u_Rd).topk(self.spec.top_centroids, dim=-1).indices
        rows = self._by_centroid[best].flatten(1, 2)
        logits = torch.bmm(rows, u_Rd.unsqueeze(2)).squeeze(2)
        ids = self.masked_embedding.token_ordering.view(self.spec.num_centroids, -1)[best].flatten(1)
        return DraftLogits(logits=at_least_float32(logits), token_ids=ids)
