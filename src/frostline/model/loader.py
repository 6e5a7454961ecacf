"""Fills a decoder or an assistant from a checkpoint folder, tensor by tensor, and refuses whatever does not fit.

Headers are checked before anything is allocated, so a wrong checkpoint costs no memory; then each tensor is copied into
its rows and let go, so the weights are never in memory twice. Knows no mathematics of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from frostline.errors import ModelError
from frostline.model.assistant import Assistant
from frostline.model.checkpoint import DENSE, IDS, TensorHeader, read_headers, read_tensors
from frostline.model.decoder import Decoder
from frostline.model.names import LM_HEAD, Slot, assistant_slots, find_prefix, is_ignored, target_slots
from frostline.model.spec import ModelSpec, assistant_spec, read_config, target_spec
from frostline.parallel.group import SOLO, ParallelGroup

_SHOWN = 3


def load_target(
    folder: str | Path, *, dtype: torch.dtype, device: torch.device | str, group: ParallelGroup = SOLO
) -> Decoder:
    """A target with its weights, in `dtype` on `device`, ready to run.

    Raises ModelError, naming the tensor, for one that is missing, surplus, misshapen, packed, given twice, or holds NaN
    or infinity; also for a config that is no target's.
    """
    folder = Path(folder)
    spec = target_spec(read_config(folder))
    headers = read_headers(folder)
    prefix = find_prefix(spec, headers)
    slots = target_slots(spec, prefix)
    wanted = _check_headers(folder, headers, slots, lambda name: is_ignored(name, spec, prefix))
    decoder = Decoder(spec, dtype=dtype, device=device, group=group)
    _fill(folder, decoder, wanted, slots)
    decoder.prepare()
    return decoder


def load_assistant(
    folder: str | Path,
    target: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    group: ParallelGroup = SOLO,
) -> Assistant:
    """The assistant of `target` with its weights, in `dtype` on `device`; raises as load_target does.

    The caller has checked that the two fit (pair.check_pair).
    """
    folder = Path(folder)
    spec = assistant_spec(read_config(folder))
    headers = read_headers(folder)
    slots = assistant_slots(spec)
    prefix = spec.text.prefixes[0]
    wanted = _check_headers(folder, headers, slots, lambda name: is_ignored(name, spec.text, prefix))
    assistant = Assistant(spec, target, dtype=dtype, device=device, group=group)
    _fill(folder, assistant, wanted, slots)
    assistant.prepare()
    return assistant


def module_tensors(module: nn.Module, slots: Mapping[str, Slot]) -> dict[str, torch.Tensor]:
    """Parameters and buffers of `module` that the slots fill; asserts that no parameter is left without a tensor."""
    held = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    filled = {slot.parameter for slot in slots.values()}
    unfilled = set(dict(module.named_parameters())) - filled
    assert not unfilled and filled <= held.keys(), (sorted(unfilled), sorted(filled - held.keys()))
    return {name: held[name] for name in filled}


def _check_headers(
    folder: Path, headers: dict[str, TensorHeader], slots: Mapping[str, Slot], ignored: Callable[[str], bool]
) -> dict[str, TensorHeader]:
    """Headers of the tensors to read. Dtypes go first: a packed checkpoint has wrong shapes and surplus scales too."""
    wanted = {name: header for name, header in headers.items() if not ignored(name)}
    surplus = sorted(wanted.keys() - slots.keys() - {LM_HEAD})
    for name in [*(n for n in slots if n in wanted), *surplus, *({LM_HEAD} & wanted.keys())]:
        allowed = IDS if name in slots and slots[name].integer else DENSE
        if wanted[name].dtype not in allowed:
            what = "token ids as int64 or int32" if allowed is IDS else "dense float weights"
            raise ModelError(
                f"{folder}: {name} has dtype {wanted[name].dtype} where {what} are expected; packed or quantized "
                "checkpoints are not supported, use the original (dense) one"
            )
    if surplus:
        raise ModelError(f"{folder}: the model has no place for {_some(surplus)}; does config.json belong to it?")
    missing = [name for name in slots if name not in wanted]
    if missing:
        raise ModelError(f"{folder}: the checkpoint lacks {_some(missing)}; is the download complete?")
    for name, slot in slots.items():
        if wanted[name].shape != slot.shape:
            raise ModelError(
                f"{folder}: {name} has shape {list(wanted[name].shape)} where config.json gives {list(slot.shape)}; "
                "config.json and weights belong to different models"
            )
    return wanted


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@torch.no_grad()
def _fill(folder: Path, module: nn.Module, wanted: dict[str, TensorHeader], slots: Mapping[str, Slot]) -> None:
    places = module_tensors(module, slots)
    # The tied head comes last: it is only compared with the embedding that is then in place.
    ordered = {name: header for name, header in wanted.items() if name != LM_HEAD}
    for name, source in read_tensors(ordered):
        slot = slots[name]
        place = places[slot.parameter][slot.start : slot.stop]
        place.copy_(source)
        if slot.integer:
            _check_permutation(folder, name, source)
        else:
            _check_finite(folder, name, source, place)
    if LM_HEAD in wanted:
        for _, source in read_tensors({LM_HEAD: wanted[LM_HEAD]}):
            _check_tied(folder, source, places["embed_tokens.weight"])


def _check_finite(folder: Path, name: str, source: torch.Tensor, place: torch.Tensor) -> None:
    # aminmax passes NaN on and needs no mask as large as the tensor.
    if _finite(place):
        return
    if _finite(source):
        raise ModelError(f"{folder}: {name} does not fit in {place.dtype}; use --dtype bfloat16 or float32")
    raise ModelError(f"{folder}: {name} holds NaN or infinity; the checkpoint is damaged, download or export it again")


def _finite(tensor: torch.Tensor) -> bool:
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _check_permutation(folder: Path, name: str, source: torch.Tensor) -> None:
    if not torch.equal(source.long().sort().values, torch.arange(source.numel())):
        raise ModelError(
            f"{folder}: {name} must hold every token id from 0 to {source.numel() - 1} once; "
            "the centroid head was not exported, or belongs to another vocabulary"
        )


def _check_tied(folder: Path, source: torch.Tensor, embedding: torch.Tensor) -> None:
    if source.shape != embedding.shape or not torch.equal(source.to(embedding), embedding):
        raise ModelError(f"{folder}: {LM_HEAD} differs from embed_tokens.weight; only tied heads are supported")
