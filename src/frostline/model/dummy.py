"""Random weights of any config, made on the device itself: for benchmarks of shapes without their checkpoint.

Scaled so that activations stay finite in bfloat16 at any depth. The text is noise and acceptance is near zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.model.loader import module_tensors
from frostline.model.names import Slot, assistant_slots, target_slots
from frostline.model.spec import AssistantSpec, ModelSpec
from frostline.parallel.group import SOLO, ParallelGroup

_SPREAD = 0.1


def dummy_target(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int = 0,
    group: ParallelGroup = SOLO,
) -> Decoder:
    """A target with random weights, the same for the same seed, dtype and kind of device."""
    decoder = Decoder(spec, dtype=dtype, device=device, group=group)
    _randomise(decoder, target_slots(spec, spec.prefixes[0]), seed)
    decoder.prepare()
    return decoder


def dummy_assistant(
    spec: AssistantSpec,
    target: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int = 0,
    group: ParallelGroup = SOLO,
) -> Assistant:
    """An assistant of `target` with random weights; its token ordering is a random permutation of the vocabulary."""
    assistant = Assistant(spec, target, dtype=dtype, device=device, group=group)
    _randomise(assistant, assistant_slots(spec), seed)
    assistant.prepare()
    return assistant


@torch.no_grad()
def _randomise(module: nn.Module, slots: Mapping[str, Slot], seed: int) -> None:
    places = module_tensors(module, slots)
    device = next(iter(places.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    integers = {slot.parameter for slot in slots.values() if slot.integer}
    for name in sorted(places):
        place = places[name]
        if name in integers:
            torch.randperm(place.numel(), generator=generator, device=device, out=place)
        elif place.dim() == 1:
            # Norms and scales. Every vector of a Gemma 4 checkpoint multiplies something, none is added.
            place.normal_(1.0, _SPREAD, generator=generator)
        else:
            # Matrices are [..., out, in]; embeddings are multiplied by sqrt(width) when read, so the same rule fits.
            place.normal_(0.0, place.shape[-1] ** -0.5, generator=generator)
