"""A pair small enough to train and check exhaustively in seconds: window 8, vocabulary 64."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from frostline.model.assistant import Assistant
from frostline.model.attention import CausalContext, FrozenDenseContext
from frostline.model.decoder import Decoder
from frostline.model.spec import assistant_spec, target_spec
from frostline.train import tiny_config
from frostline.train.dense import last_owners
from frostline.train.drafter import new_assistant
from frostline.train.initial import initialise

VOCAB = 64
_SHARED = {"vocab_size": VOCAB, "sliding_window": 8, "head_dim": 16, "global_head_dim": 32, "num_attention_heads": 2}


def target_config() -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size_per_layer_input": VOCAB}
    layers = {"num_hidden_layers": 6, "num_kv_shared_layers": 2}
    types = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}
    return tiny_config.target_config() | _SHARED | sizes | layers | types


def assistant_config() -> dict[str, Any]:
    config = tiny_config.assistant_config()
    text = config["text_config"] | _SHARED | {"hidden_size": 24, "intermediate_size": 40}
    heads = {"num_centroids": 8, "centroid_intermediate_top_k": 3, "backbone_hidden_size": 32}
    return config | heads | {"text_config": text}


def toy_target(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Decoder:
    decoder = Decoder(target_spec(target_config()), dtype=dtype)
    initialise(decoder, seed)
    roughen(decoder, seed)
    return decoder.eval()


def toy_assistant(target: Decoder, *, position: str = "P", seed: int = 1) -> Assistant:
    config = assistant_config() | {"draft_position": position}
    assistant = Assistant(assistant_spec(config), target.spec, dtype=target.dtype)
    new_assistant(assistant, target, seed)
    roughen(assistant, seed)
    return assistant.eval()


@torch.no_grad()
def roughen(module: Decoder | Assistant, seed: int) -> None:
    """Norms and scalars away from their initial values, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        if weight.dim() == 1:
            weight.mul_(torch.empty(weight.shape).uniform_(0.7, 1.4, generator=generator))
    module.prepare()


def target_rows(target: Decoder, tokens: list[int]) -> tuple[torch.Tensor, CausalContext]:
    """Hidden states [1, T, D] of one sequence by the dense oracle, and its context."""
    context = CausalContext(target.spec, target.rotary, torch.arange(len(tokens)))
    return target(torch.tensor([tokens]), context), context


def draft_step(
    target: Decoder, assistant: Assistant, context: CausalContext, length: int, token: int, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One draft step of one request with `length` rows in the cache: (u [d], next hidden [E])."""
    offset = 0 if assistant.spec.draft_position == "P" else -1
    kv = last_owners(target.spec, context.kv)
    frozen = FrozenDenseContext(target.spec, assistant.rotary, kv=kv, positions_T=torch.arange(length), offset=offset)
    # Only the last row of the parallel pass stands for this request; the others repeat its inputs.
    embedding = target.embed(torch.tensor([[token] * length]))
    u, following = assistant.step(embedding, hidden.expand(1, length, -1), frozen)
    return u[0, -1], following[0, -1]


def parameters_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}
