"""transformers' own generate, to be measured beside the engine in the same process. Imported only for that comparison.

Knows token ids and one model folder; greedy, one padded batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


class TransformersBaseline:
    """A causal language model of transformers that generates a fixed number of tokens for a batch of prompts."""

    def __init__(self, folder: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype).to(device).eval()
        # Our side does not stop at the end of text either; otherwise the two would do different amounts of work.
        self._model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> tuple[list[tuple[int, ...]], float]:
        """New ids per prompt, all `max_tokens` long, and seconds. Shorter prompts are padded on the left."""
        width = max(len(prompt) for prompt in prompts)
        ids_BS = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask_BS = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        config = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)
        start = time.perf_counter()
        full_BS = self._model.generate(
            input_ids=ids_BS.to(self._device), attention_mask=mask_BS.to(self._device), generation_config=config
        )
        rows = full_BS[:, width:].tolist()
        return [tuple(row) for row in rows], time.perf_counter() - start
