"""The decoder against transformers, and each of our ways of computing it against the full forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frostline.model.attention import CausalContext, TreeRows
from frostline.model.decoder import Decoder
from frostline.model.loader import load_target
from tests.model.paged import Paged
from tests.model.tiny import KINDS, VOCAB, WINDOW, tiny_target

LENGTH = 3 * WINDOW + 5
TOLERANCE = 1e-9


@dataclass
class Loaded:
    """One kind: the oracle, ours in float32 and float64, a batch of token ids and our full forward's logits."""

    folder: Path
    oracle: Any
    single: Decoder
    double: Decoder
    tokens: Tensor
    logits: Tensor


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    kind: str = request.param
    folder: Path = tmp_path_factory.mktemp(kind)
    oracle = tiny_target(kind)
    oracle.save_pretrained(folder)
    double = load_target(folder, dtype=torch.float64, device="cpu").eval()
    tokens = torch.randint(0, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        single = load_target(folder, dtype=torch.float32, device="cpu").eval()
        yield Loaded(folder, oracle, single, double, tokens, _full(double, tokens))


def _full(decoder: Decoder, tokens: Tensor) -> Tensor:
    context = CausalContext(decoder.spec, decoder.rotary, torch.arange(tokens.shape[1]))
    return decoder.logits(decoder(tokens, context))


def _prefilled(loaded: Loaded, lengths: Tensor) -> Paged:
    """The first `lengths[b]` tokens of each row in the cache."""
    paged = Paged(loaded.double, len(lengths))
    width = int(lengths.max())
    paged.forward(loaded.tokens[:, :width], torch.zeros_like(lengths), length_B=lengths)
    return paged


def _close(ours: Tensor, reference: Tensor, tolerance: float = TOLERANCE) -> None:
    assert ours.shape == reference.shape
    assert (ours - reference).abs().max().item() < tolerance


def test_logits_equal_transformers_past_the_window(loaded: Loaded) -> None:
    reference = loaded.oracle(loaded.tokens).logits
    assert reference.std() > 0.5
    _close(_full(loaded.single, loaded.tokens), reference, 1e-4)
    assert loaded.single.logits(loaded.single.embed(loaded.tokens)).dtype == torch.float32


def test_float64_equals_transformers_in_float64(loaded: Loaded) -> None:
    # transformers rounds to float32 in norms, softmax and rope even here, so the bound is float32's.
    reference = _oracle(loaded, torch.float64)(loaded.tokens).logits
    _close(loaded.logits, reference, 1e-4)


def test_bfloat16_is_as_near_to_float64_as_transformers(loaded: Loaded) -> None:
    ours = _full(load_target(loaded.folder, dtype=torch.bfloat16, device="cpu").eval(), loaded.tokens)
    theirs = _oracle(loaded, torch.bfloat16)(loaded.tokens).logits
    assert ours.dtype == torch.float32
    # Twice leaves room for experts that flip by rounding, in either of the two.
    assert (ours - loaded.logits).abs().mean() < 2 * (theirs - loaded.logits).abs().mean()


def _oracle(loaded: Loaded, dtype: torch.dtype) -> torch.nn.Module:
    # Loaded anew: converting the module in place would round its rope frequencies too.
    model: torch.nn.Module = type(loaded.oracle).from_pretrained(
        loaded.folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


@pytest.mark.parametrize("sizes", [(LENGTH,), (1, 2, WINDOW, WINDOW + 1, 9), (7,) * 5])
def test_prefill_in_chunks(loaded: Loaded, sizes: tuple[int, ...]) -> None:
    paged, start, parts = Paged(loaded.double, 3), 0, []
    for size in sizes:
        chunk = loaded.tokens[:, start : start + size]
        parts.append(loaded.double.logits(paged.forward(chunk, torch.full((3,), start))))
        start += chunk.shape[1]
    _close(torch.cat(parts, 1), loaded.logits[:, :start])


def test_prefill_of_padded_chunks_wants_the_last_row_only(loaded: Loaded) -> None:
    lengths = torch.tensor([LENGTH, 11, 3])
    hidden = Paged(loaded.double, 3).forward(
        loaded.tokens, torch.zeros(3, dtype=torch.int64), length_B=lengths, last_B=lengths - 1
    )
    _close(loaded.double.logits(hidden)[:, 0], loaded.logits[torch.arange(3), lengths - 1])


def test_second_chunk_wants_the_last_row_only(loaded: Loaded) -> None:
    paged = Paged(loaded.double, 3)
    paged.forward(loaded.tokens[:, :13], torch.zeros(3, dtype=torch.int64), last_B=torch.full((3,), 12))
    lengths = torch.tensor([LENGTH - 13, 5, 1])
    hidden = paged.forward(loaded.tokens[:, 13:], torch.full((3,), 13), length_B=lengths, last_B=lengths - 1)
    _close(loaded.double.logits(hidden)[:, 0], loaded.logits[torch.arange(3), lengths + 12])


def test_single_token_decode_of_a_ragged_batch(loaded: Loaded) -> None:
    base = torch.tensor([17, 5, 1])
    paged, row = _prefilled(loaded, base), torch.arange(3)
    for _ in range(LENGTH - 17):
        hidden = paged.forward(loaded.tokens[row, base].unsqueeze(1), base)
        _close(loaded.double.logits(hidden)[:, 0], loaded.logits[row, base])
        base = base + 1


def test_a_larger_bound_changes_nothing(loaded: Loaded) -> None:
    base = torch.tensor([17, 5, 1])
    tokens = loaded.tokens[torch.arange(3), base].unsqueeze(1)
    paged = _prefilled(loaded, base)
    _close(paged.forward(tokens, base, kv_bound=60), paged.forward(tokens, base))


def test_chain_verify_of_a_ragged_batch(loaded: Loaded) -> None:
    base, width = torch.tensor([20, 7, 2]), 6
    index = base.unsqueeze(1) + torch.arange(width)
    hidden = _prefilled(loaded, base).forward(loaded.tokens.gather(1, index), base)
    rows = torch.arange(3).unsqueeze(1)
    _close(loaded.double.logits(hidden), loaded.logits[rows, index])


# Parents of a bushy tree, a chain as a tree, and the deepest tree with siblings; parents come before children.
TREES = {
    "bushy": (-1, 0, 0, 0, 1, 1, 2, 4, 4, 6, 7, 8),
    "chain": tuple(range(-1, 9)),
    "deep": (-1, 0, 0, 1, 3, 4, 5, 6, 7, 8, 2, 10, 11),
}


@pytest.mark.parametrize("name", TREES)
def test_tree_verify_equals_the_path_alone(loaded: Loaded, name: str) -> None:
    parents, base = TREES[name], torch.tensor([20, 7, 2])
    paths = [_path(parents, node) for node in range(len(parents))]
    tree = TreeRows(
        depth_BN=torch.tensor([[len(path) - 1 for path in paths]]).expand(3, -1),
        ancestors_BN=torch.tensor([[sum(1 << node for node in path) for path in paths]]).expand(3, -1),
    )
    tokens = torch.randint(0, VOCAB, (3, len(parents)), generator=torch.Generator().manual_seed(5))
    ours = loaded.double.logits(_prefilled(loaded, base).forward(tokens, base, tree=tree))
    for request, length in enumerate(base.tolist()):
        for node, path in enumerate(paths):
            alone = torch.cat((loaded.tokens[request, :length], tokens[request, path]))
            _close(ours[request, node], _full(loaded.double, alone.unsqueeze(0))[0, -1])


def _path(parents: tuple[int, ...], node: int) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def test_float64_makes_no_narrower_float(loaded: Loaded) -> None:
    base = torch.tensor([9, 12, 3])
    seen: set[torch.dtype] = set()
    with Watch(seen):
        paged = _prefilled(loaded, base)
        loaded.double.logits(paged.forward(loaded.tokens[:, :4], base))
        _full(loaded.double, loaded.tokens)
    assert torch.float64 in seen
    assert not seen & {torch.float32, torch.bfloat16, torch.float16}


class Watch(TorchDispatchMode):
    """Notes the dtype of every tensor that any operation makes."""

    def __init__(self, seen: set[torch.dtype]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor):
                self._seen.add(part.dtype)
        return out
