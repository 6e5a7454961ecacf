"""Hugging Face configs of the bundled pair: shapes, what its checkpoints say, and nothing about how it is trained.

The target is an E2B in small: per-layer embeddings, shared keys and values, sliding and full layers, softcap, tied
head. Sizes are chosen so that both safetensors files in bfloat16 stay under 13.3 MB together.
"""

from __future__ import annotations

import math
from typing import Any

from frostline.model.names import assistant_slots, parameter_shapes, target_slots
from frostline.model.spec import assistant_spec, target_spec
from frostline.train.tokenizer import EOS_IDS, GENERATION_DEFAULTS, VOCAB_SIZE

_PATTERN = ("sliding_attention", "sliding_attention", "sliding_attention", "full_attention")
HIDDEN = 160
NUM_DRAFTS = 4


def target_config() -> dict[str, Any]:
    """config.json of the bundled target, for Gemma4ForCausalLM."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        **_shared_settings(),
        "hidden_size": HIDDEN,
        "intermediate_size": 256,
        "use_double_wide_mlp": True,
        "num_hidden_layers": 16,
        "layer_types": list(_PATTERN * 4),
        "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "final_logit_softcapping": 30.0,
    }


def assistant_config() -> dict[str, Any]:
    """config.json of its assistant, for Gemma4AssistantForCausalLM; `draft_position` is ours (architecture 4.5)."""
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": HIDDEN,
        "use_ordered_embeddings": True,
        "num_centroids": 64,
        "centroid_intermediate_top_k": 16,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "draft_position": "P",
        "text_config": {
            "model_type": "gemma4_text",
            **_shared_settings(),
            "hidden_size": 128,
            "intermediate_size": 384,
            "use_double_wide_mlp": False,
            "num_hidden_layers": 4,
            "layer_types": list(_PATTERN),
            "num_kv_shared_layers": 4,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "final_logit_softcapping": None,
        },
    }


def target_generation_config() -> dict[str, Any]:
    return dict(GENERATION_DEFAULTS)


def assistant_generation_config() -> dict[str, Any]:
    """transformers reads the number of drafts here and fails without it (gemma4.md 3.4)."""
    return {
        "bos_token_id": 2,
        "do_sample": False,
        "eos_token_id": list(EOS_IDS),
        "num_assistant_tokens": NUM_DRAFTS,
        "num_assistant_tokens_schedule": "constant",
        "pad_token_id": 0,
    }


def parameter_counts() -> dict[str, int]:
    """Parameters of the pair; token ids of the centroid head count by themselves, they take 8 bytes each."""
    target = parameter_shapes(target_slots(target_spec(target_config()), "model."))
    assistant = parameter_shapes(assistant_slots(assistant_spec(assistant_config())))
    ordering = assistant.pop("masked_embedding.token_ordering")
    return {
        "target": sum(math.prod(shape) for shape in target.values()),
        "assistant": sum(math.prod(shape) for shape in assistant.values()),
        "token_ordering": math.prod(ordering),
    }


def _shared_settings() -> dict[str, Any]:
    """What must be equal for the assistant to read the target's keys and values, and the vocabulary."""
    return {
        "vocab_size": VOCAB_SIZE,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": 64,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "max_position_embeddings": 2048,
        "enable_moe_block": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": list(EOS_IDS),
        "dtype": "bfloat16",
    }
