"""Trains a Frozen-KV assistant for any target the engine loads.

For every row i of a sequence, with rows 0..i in the cache and token i+1 as the bonus: depth s reads the embedding of
token i+s, the target's hidden of row i (s = 1) or its own returned hidden (s > 1), and rows 0..i, from one constant
position; it should predict what the target predicts after token i+s, the logits of row i+s. Later depths feed the true
next token, which is what drafting feeds whenever the earlier drafts were accepted. So each depth is one parallel pass.

B sequences, T rows, V vocabulary, C centroids, E backbone width, S depths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.train.clusters import token_ordering
from frostline.train.data import Packer
from frostline.train.dense import CausalBlocks, FrozenBlocks, last_owners
from frostline.train.initial import head_from_target, initialise
from frostline.train.loop import Metrics, Optimiser, fit, maybe_compiled
from frostline.train.schedule import Budget, Reporter
from frostline.types import Group


@dataclass(frozen=True, kw_only=True)
class DrafterSettings:
    """depths: S drafts per row in training. depth_decay: weight of depth s is its (s-1)-th power.

    centroid_weight: weight of the auxiliary loss that teaches which clusters hold the target's mass.
    """

    batch_tokens: int = 32_768
    length: int = 1024
    depths: int = 5
    depth_decay: float = 0.9
    centroid_weight: float = 0.2
    optimiser: Optimiser = field(default_factory=lambda: Optimiser(peak=3e-3, decay=0.05))
    compile: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """What a frozen target says of a batch. probability [B, T, V]; entropy [B, T]; mass [B, T, C] or None."""

    hidden: Tensor
    embedding: Tensor
    kv: dict[Group, Tensor]
    probability: Tensor
    entropy: Tensor
    mass: Tensor | None


def new_assistant(assistant: Assistant, target: Decoder, seed: int) -> None:
    """Fill an assistant to begin training from: random layers, the head and the clusters from the target's table."""
    initialise(assistant, seed)
    if assistant.spec.text.hidden_size <= target.spec.hidden_size:
        head_from_target(assistant, target)
    if assistant.spec.ordered:
        order = token_ordering(target.embed_tokens.weight, assistant.spec.num_centroids)
        assistant.masked_embedding.token_ordering.copy_(order)
    assistant.prepare()


def train_drafter(
    assistant: Assistant, target: Decoder, packer: Packer, budget: Budget, settings: DrafterSettings, console: Console
) -> dict[str, Any]:
    """Train in place against a frozen target on packed text; the assistant ends in eval mode, prepared.

    The constant position is the one that the assistant's spec records ("P" when it says none). Returns steps, rows
    seen, seconds and the curve: divergence (nats) and top-1 agreement with the target per depth.
    """
    target.eval()
    seen = 0

    def losses(tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return draft_losses(assistant, observe(target, assistant, tokens), tokens, weight, settings)

    compiled: Callable[..., tuple[Tensor, Tensor, Tensor]] = maybe_compiled(
        losses, enabled=settings.compile, console=console
    )

    def loss_fn(_: float) -> tuple[Tensor, Metrics]:
        nonlocal seen
        tokens, weight = packer.draw(settings.length)
        seen += tokens.numel() - len(tokens)
        loss, divergence_S, agreement_S = compiled(tokens, weight)
        metrics: Metrics = {}
        for depth in range(settings.depths):
            metrics[f"kl{depth + 1}"], metrics[f"top{depth + 1}"] = divergence_S[depth], agreement_S[depth]
        return loss, metrics

    def warm_up() -> None:
        torch.autograd.backward(compiled(*packer.draw(settings.length))[0])

    reporter = Reporter(console, "drafter")
    fitted = fit(
        assistant,
        loss_fn,
        budget,
        settings.optimiser,
        reporter,
        warm_up=warm_up if settings.compile else None,
    )
    return {"steps": fitted.steps, "tokens": seen, "seconds": fitted.seconds, "curve": fitted.curve}


@torch.no_grad()
def observe(target: Decoder, assistant: Assistant, tokens: Tensor) -> Teacher:
    """The target's forward over tokens [B, T + 1] (the last one is only ever predicted), in the assistant's dtype."""
    length, dtype = tokens.shape[1] - 1, assistant.dtype
    context = CausalBlocks(target.spec, target.rotary, length, tokens.device)
    hidden = target(tokens[:, :-1], context)
    log_p = F.log_softmax(target.logits(hidden), dim=-1)
    p = log_p.exp()
    mass = None
    if assistant.spec.ordered:
        ordered = p[..., assistant.masked_embedding.token_ordering]
        mass = torch.unflatten(ordered, -1, (assistant.spec.num_centroids, -1)).sum(-1)
    return Teacher(
        hidden=hidden.to(dtype),
        embedding=target.embed(tokens[:, :-1]).to(dtype),
        kv={kind: rows.to(dtype) for kind, rows in last_owners(target.spec, context.kv).items()},
        probability=p,
        entropy=-(p * log_p).sum(-1),
        mass=mass,
    )


def draft_losses(
    assistant: Assistant, teacher: Teacher, tokens: Tensor, weight: Tensor, settings: DrafterSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, divergence [S], top-1 agreement [S]) of a batch; the latter two are detached.

    tokens, weight [B, T + 1]: weight[:, t] is of token t as a prediction. Depth s has rows 0..T-1-s: row i reads token
    i+s and predicts token i+s+1, so it is compared with the teacher's row i+s and weighted by weight[:, i+s+1].
    """
    length = tokens.shape[1] - 1
    offset = 0 if assistant.spec.draft_position in (None, "P") else -1
    context = FrozenBlocks(
        assistant.target_spec, assistant.rotary, kv=teacher.kv, length=length, offset=offset, device=tokens.device
    )
    hidden = teacher.hidden
    total = torch.zeros((), device=tokens.device)
    divergences, agreements = [], []
    for s in range(1, settings.depths + 1):
        # Rows past the end read zeros in place of an embedding; they are cut from every loss below.
        embedding = F.pad(teacher.embedding[:, s:], (0, 0, 0, s))
        u, hidden = assistant.step(embedding, hidden, context)
        u_s, p, kept = u[:, : length - s], teacher.probability[:, s:], weight[:, s + 1 :]
        log_q = F.log_softmax(assistant.dense_logits(u_s), dim=-1)
        divergence = _mean(-(p * log_q).sum(-1) - teacher.entropy[:, s:], kept)
        loss = divergence
        if teacher.mass is not None:
            log_c = F.log_softmax(assistant.masked_embedding.centroids(u_s).float(), dim=-1)
            loss = loss + settings.centroid_weight * _mean(-(teacher.mass[:, s:] * log_c).sum(-1), kept)
        total = total + settings.depth_decay ** (s - 1) * loss
        divergences.append(divergence.detach())
        agreements.append(_mean((p.argmax(-1) == log_q.detach().argmax(-1)).float(), kept))
    return total, torch.stack(divergences), torch.stack(agreements)


def _mean(value: Tensor, weight: Tensor) -> Tensor:
    return (value * weight).sum() / weight.sum().clamp(min=1e-6)
