"""Trains a target from scratch on packed documents: next-token cross-entropy on softcapped logits.

Any ModelSpec will do. Knows nothing of files, drafters or how the text was made.

B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from frostline.model.decoder import Decoder
from frostline.train.data import Documents, Packer
from frostline.train.dense import CausalBlocks
from frostline.train.loop import Metrics, Optimiser, fit, maybe_compiled
from frostline.train.schedule import Budget, Reporter


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """batch_tokens per step; rows of `length` tokens, of twice that in the last `long_share` of the run.

    held_out_tokens: how many of each kind the held-out loss is measured on.
    """

    batch_tokens: int = 65_536
    length: int = 1024
    long_share: float = 0.2
    held_out_tokens: int = 32_768
    optimiser: Optimiser = field(default_factory=Optimiser)
    compile: bool = False
    seed: int = 0


def pretrain(
    decoder: Decoder,
    train: Documents,
    held_out: Mapping[str, Documents],
    budget: Budget,
    settings: PretrainSettings,
    console: Console,
) -> dict[str, Any]:
    """Train in place; the decoder ends in eval mode, prepared.

    Returns steps, tokens seen, seconds, epochs, the curve, and the last held-out loss per kind (nats per token).
    """
    device = decoder.device
    packer = Packer(train, batch_tokens=settings.batch_tokens, device=device, seed=settings.seed)
    compiled = maybe_compiled(
        lambda tokens, weight: next_token_loss(decoder, tokens, weight), enabled=settings.compile, console=console
    )
    watched = {
        kind: Packer(documents, batch_tokens=settings.held_out_tokens, device=device, seed=0).draw(settings.length)[0]
        for kind, documents in held_out.items()
        if len(documents.tokens) > settings.length
    }
    seen = 0

    def loss_fn(fraction: float) -> tuple[Tensor, Metrics]:
        nonlocal seen
        length = settings.length * (2 if fraction >= 1.0 - settings.long_share else 1)
        tokens, weight = packer.draw(length)
        seen += tokens.numel() - len(tokens)
        return compiled(tokens, weight), {}

    def watch(_: float) -> dict[str, float]:
        return {f"held_out_{kind}": held_out_loss(decoder, tokens) for kind, tokens in watched.items()}

    def warm_up() -> None:
        # Both row lengths are compiled before the clock starts.
        for length in (settings.length, 2 * settings.length):
            torch.autograd.backward(compiled(*packer.draw(length)))

    reporter = Reporter(console, "target")
    fitted = fit(
        decoder,
        loss_fn,
        budget,
        settings.optimiser,
        reporter,
        watch=watch,
        warm_up=warm_up if settings.compile else None,
    )
    last = {name: value for name, value in fitted.curve[-1].items() if name.startswith("held_out_")}
    return {
        "steps": fitted.steps,
        "tokens": seen,
        "seconds": fitted.seconds,
        "epochs": packer.epochs,
        "held_out": last,
        "curve": fitted.curve,
    }


def next_token_loss(decoder: Decoder, tokens: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean cross-entropy. tokens, weight [B, T + 1]; weight[:, t] is of tokens[:, t] as a prediction."""
    loss = _cross_entropy(decoder, tokens)
    kept = weight[:, 1:]
    return (loss * kept).sum() / kept.sum()


def held_out_loss(decoder: Decoder, tokens: Tensor) -> float:
    """Mean cross-entropy in nats per token, row by row to bound the memory. tokens [B, T + 1]."""
    return float(torch.stack([_cross_entropy(decoder, rows).mean() for rows in torch.split(tokens, 8)]).mean())


def _cross_entropy(decoder: Decoder, tokens: Tensor) -> Tensor:
    context = CausalBlocks(decoder.spec, decoder.rotary, tokens.shape[1] - 1, tokens.device)
    hidden = decoder(tokens[:, :-1], context)
    logits = decoder.logits(hidden)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view_as(tokens[:, 1:])
