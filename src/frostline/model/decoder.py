"""The Gemma 4 text decoder: one class for every target, driven by its ModelSpec (gemma4.md section 1).

B requests, Q query rows, D hidden, L layers, P per-layer-embedding width, V vocabulary. Knows no pages and no requests:
attention, keys and values are the context's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from frostline.kernels import ops, reference
from frostline.model.attention import AttentionContext
from frostline.model.layers import Attention, Embedding, GatedMLP, RMSNorm
from frostline.model.moe import Experts, Router
from frostline.model.rope import Rotary
from frostline.model.spec import LayerSpec, ModelSpec
from frostline.parallel.group import SOLO, ParallelGroup
from frostline.parallel.linear import ColumnLinear, Linear, RowLinear


class DecoderLayer(nn.Module):
    """One layer in the order of gemma4.md 1.4; assistants use it too, with a spec that shares every key and value."""

    def __init__(
        self, spec: ModelSpec, layer: LayerSpec, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        size, eps = spec.hidden_size, spec.eps

        def norm() -> RMSNorm:
            return RMSNorm(size, eps, dtype=dtype, device=device)

        self.input_layernorm = norm()
        self.self_attn = Attention(layer, size, eps, group=group, dtype=dtype, device=device)
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = GatedMLP(size, layer.intermediate, group=group, dtype=dtype, device=device)
        self.post_feedforward_layernorm = norm()
        self.layer_scalar = nn.Parameter(torch.empty(1, dtype=dtype, device=device), requires_grad=False)
        self.has_moe, self.has_ple = spec.moe is not None, spec.ple_dim > 0
        if spec.moe is not None:
            self.router = Router(size, spec.moe, eps, group=group, dtype=dtype, device=device)
            self.experts = Experts(size, spec.moe, dtype=dtype, device=device)
            self.post_feedforward_layernorm_1 = norm()
            self.pre_feedforward_layernorm_2 = norm()
            self.post_feedforward_layernorm_2 = norm()
        if spec.ple_dim:
            width = spec.ple_dim
            self.per_layer_input_gate = ColumnLinear(size, width, group=group, dtype=dtype, device=device)
            self.per_layer_projection = RowLinear(width, size, group=group, dtype=dtype, device=device)
            self.post_per_layer_input_norm = norm()

    def forward(self, x: Tensor, ple: Tensor | None, context: AttentionContext) -> Tensor:
        """x [B, Q, D]; ple [B, Q, P] of this layer or None."""
        attended = self.self_attn(self.input_layernorm(x), context)
        x, h = self.post_attention_layernorm.then(attended, x, self.pre_feedforward_layernorm)
        h = self.mlp(h)
        if self.has_moe:
            h = self.post_feedforward_layernorm_1(h, self._mixture(x))
        if ple is None:
            return self.post_feedforward_layernorm(h, x, self.layer_scalar)
        x = self.post_feedforward_layernorm(h, x)
        gated = ops.gelu_times(self.per_layer_input_gate(x), ple)
        return self.post_per_layer_input_norm(self.per_layer_projection(gated), x, self.layer_scalar)

    __call__ = forward

    def _mixture(self, residual: Tensor) -> Tensor:
        rows = residual.flatten(0, -2)
        weights, experts = self.router(rows)
        mixed = self.experts(self.pre_feedforward_layernorm_2(rows), weights, experts)
        out: Tensor = self.post_feedforward_layernorm_2(mixed)
        return out.view_as(residual)


class Decoder(nn.Module):
    """A target model. Parameters are created uninitialised; the loader, the dummy builder or a trainer fills them."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        group: ParallelGroup = SOLO,
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.spec, self.group = spec, group
        size = spec.hidden_size
        # Rounded to the weights' dtype before it multiplies (gemma4.md 1.2, 1.3).
        self._embed_scale = _rounded(math.sqrt(size), dtype)
        self._ple_scale = _rounded(math.sqrt(spec.ple_dim), dtype)
        self.embed_tokens = Embedding(spec.vocab_size, size, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, layer, group=group, dtype=dtype, device=device) for layer in spec.layers
        )
        self.norm = RMSNorm(size, spec.eps, dtype=dtype, device=device)
        if spec.ple_dim:
            packed = len(spec.layers) * spec.ple_dim
            self.embed_tokens_per_layer = Embedding(spec.ple_vocab, packed, dtype=dtype, device=device)
            self.per_layer_model_projection = ColumnLinear(size, packed, group=group, dtype=dtype, device=device)
            self.per_layer_projection_norm = RMSNorm(spec.ple_dim, spec.eps, dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def prepare(self) -> None:
        """Build what is derived from weights and device; call after loading and after weights change."""
        self.rotary = Rotary(self.spec, dtype=self.dtype, device=self.device)
        prepare_parts(self)

    def embed(self, tokens: Tensor) -> Tensor:
        """Scaled embedding [..., D]."""
        embedded: Tensor = self.embed_tokens(tokens)
        return embedded * self._embed_scale

    def forward(self, tokens: Tensor, context: AttentionContext, last: Tensor | None = None) -> Tensor:
        """Post-final-norm hidden states.

        tokens [B, Q] int64. last [B]: when only this query row of each request is wanted (prefill), the layers that
        share keys and values run for it alone, and the result is [B, 1, D]; otherwise [B, Q, D].
        """
        x = self.embed(tokens)
        ple = self._per_layer_inputs(tokens, x) if self.spec.ple_dim else None
        for index, layer in enumerate(self.layers):
            if last is not None and index == self.spec.first_shared:
                x, context = _pick(x, last), context.pick(last)
                ple = None if ple is None else _pick(ple, last)
                last = None
            x = layer(x, None if ple is None else ple.select(2, index), context)
        if last is not None:
            x = _pick(x, last)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [..., V], softcapped, at least float32."""
        return reference.softcap(ops.head_logits(hidden, self.embed_tokens.weight), self.spec.softcap)

    def _per_layer_inputs(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """Per-layer embeddings of all layers, [B, Q, L, P] (gemma4.md 1.3)."""
        shape = (len(self.spec.layers), self.spec.ple_dim)
        by_token = self.embed_tokens_per_layer(tokens) * self._ple_scale
        by_context = self.per_layer_model_projection(embedded) * self.spec.hidden_size**-0.5
        normed = self.per_layer_projection_norm(torch.unflatten(by_context, -1, shape))
        mixed: Tensor = (normed + torch.unflatten(by_token, -1, shape)) * 2**-0.5
        return mixed


def prepare_parts(model: nn.Module) -> None:
    """Let every norm, attention and linear layer of a model make its weights ready for inference."""
    for part in model.modules():
        if isinstance(part, RMSNorm | Attention | Linear):
            part.prepare()


def _rounded(value: float, dtype: torch.dtype) -> float:
    return torch.tensor(value, dtype=dtype).item()


def _pick(x: Tensor, row_B: Tensor) -> Tensor:
    """Query row `row_B[b]` of each request: x [B, Q, ...] -> [B, 1, ...]."""
    return x[torch.arange(len(x), device=x.device), row_B].unsqueeze(1)
