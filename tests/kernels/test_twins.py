"""Every Triton kernel against its plain-torch twin: on the GPU at real shapes, else through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from frostline.kernels import experts, fused, paged, reference

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
# The interpreter has no bfloat16 arithmetic of its own.
DTYPES = [torch.float32, torch.bfloat16] if CUDA else [torch.float32]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error <= TOLERANCE[found.dtype], error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [160, 1, 2560] if CUDA else [160, 1])
def test_norms(dtype: torch.dtype, size: int) -> None:
    x, residual = draw(3, 2, size, dtype=dtype), draw(3, 2, size, dtype=dtype, seed=1)
    first, then = (reference.prepare_norm(draw(size, dtype=dtype, seed=s), 1e-6) for s in (2, 3))
    scalar = torch.tensor([0.75], dtype=dtype, device=DEVICE)
    close(fused.prepared_norm(x, first), reference.prepared_norm(x, first))
    close(fused.prepared_norm(x, first, residual), reference.prepared_norm(x, first, residual))
    close(fused.prepared_norm(x, first, residual, scalar), reference.prepared_norm(x, first, residual, scalar))
    for found, expected in zip(
        fused.norm_pair(x, first, residual, then), reference.norm_pair(x, first, residual, then), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hd", [32, 256, 512] if CUDA else [32])
@pytest.mark.parametrize("own", [False, True])
def test_norm_rope(dtype: torch.dtype, hd: int, own: bool) -> None:
    heads = draw(3, 2, 6, hd, dtype=dtype)
    weights = reference.prepare_norm(draw(*((6, hd) if own else (hd,)), dtype=dtype, seed=1), 1e-6)
    cos, sin = (draw(3, 2, 6 if own else 1, hd, dtype=dtype, seed=s) for s in (2, 3))
    close(fused.norm_rope(heads, weights, cos, sin), reference.norm_rope(heads, weights, cos, sin))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [10, 1025, 20480] if CUDA else [10, 1025])
def test_gates(dtype: torch.dtype, size: int) -> None:
    gate_up, ple = draw(3, 2, 2 * size, dtype=dtype), draw(3, 2, 4, size, dtype=dtype, seed=1)
    close(fused.gated_gelu(gate_up), reference.gated_gelu(gate_up))
    gate = gate_up[..., :size].contiguous()
    close(fused.gelu_times(gate, ple[:, :, 2]), reference.gelu_times(gate, ple[:, :, 2]))


# Borders: lengths at 0, at a split's and a page's edge and past it; more query rows than one tile; windows that cut.
CASES = [
    # lengths, nodes, heads, kv heads, hd, page size, window, tree
    ((0, 255), 1, 4, 1, 64, 16, None, False),
    ((1, 256, 600), 6, 4, 2, 64, 16, 40, False),
    ((511, 512), 7, 8, 1, 32, 8, None, True),
    ((30, 300), 7, 4, 2, 32, 8, 5, True),
    ((0, 530), 16, 8, 1, 64, 16, 300, True),
    ((513,), 5, 2, 2, 512, 16, None, True),
    ((5000, 64), 2, 2, 1, 16, 16, None, False),
    ((4500, 4200), 2, 2, 1, 16, 16, 4300, False),
]
REAL = [
    ((128, 4000, 129), 6, 8, 2, 256, 16, 512, False),
    ((128, 4000, 129), 6, 8, 2, 512, 16, None, False),
    ((0, 1023, 1030), 64, 32, 4, 512, 16, None, True),
    ((0, 1023, 1030), 16, 32, 16, 256, 16, 1024, True),
]


def ancestors(batch: int, nodes: int, *, tree: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    words = torch.zeros(batch, nodes, dtype=torch.int64)
    depth = torch.zeros_like(words)
    for b in range(batch):
        for n in range(1, nodes):
            parent = int(torch.randint(0, n, (1,), generator=generator)) if tree else n - 1
            words[b, n], depth[b, n] = int(words[b, parent]) | (1 << parent), depth[b, parent] + 1
        words[b] |= 1 << torch.arange(nodes)
    return words.to(DEVICE), depth.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES + REAL if CUDA else CASES)
@pytest.mark.parametrize("frozen", [False, True])
def test_paged_attention(dtype: torch.dtype, case: tuple, frozen: bool) -> None:  # type: ignore[type-arg]
    lengths, nodes, heads, kv_heads, hd, page_size, window, tree = case
    batch, width = len(lengths), -(-(max(lengths) + nodes) // page_size) + 2
    order = torch.randperm(batch * width, generator=torch.Generator().manual_seed(1))
    table = (order + 1).view(batch, width).to(DEVICE)
    slots = draw((batch * width + 1) * page_size, 2 * kv_heads, hd, dtype=dtype)
    q = draw(batch, nodes, heads, hd, dtype=dtype, seed=1) / hd**0.5
    words, depth = ancestors(batch, nodes, tree=tree)
    rows = reference.PagedRows(
        slots=slots,
        table_Bn=table,
        length_B=torch.tensor(lengths, device=DEVICE),
        page_size=page_size,
        kv_bound=max(lengths) + nodes,
        window=window,
        **({"offset": -1} if frozen else {"words_BN": words, "depth_BN": depth}),
    )
    close(paged.paged_attention(q, rows), reference.paged_attention(q, rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_does_not_feel_its_batch_or_the_bound(dtype: torch.dtype) -> None:
    table = torch.arange(1, 81, device=DEVICE).view(2, 40)
    slots, q = draw(81 * 16, 2, 64, dtype=dtype), draw(2, 3, 4, 64, dtype=dtype, seed=1)
    words, depth = ancestors(2, 3, tree=False)
    length = torch.tensor([300, 17], device=DEVICE)

    def run(rows: slice, bound: int) -> Tensor:
        seen = reference.PagedRows(
            slots=slots,
            table_Bn=table[rows],
            length_B=length[rows],
            page_size=16,
            kv_bound=bound,
            window=None,
            words_BN=words[rows],
            depth_BN=depth[rows],
        )
        return paged.paged_attention(q[rows], seen)

    both = run(slice(0, 2), 640)
    assert torch.equal(both[:1], run(slice(0, 1), 303)) and torch.equal(both[1:], run(slice(1, 2), 20))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "top_k", "count", "width", "size"),
    [(1, 2, 4, 24, 40), (37, 3, 5, 33, 130)] + ([(6, 8, 128, 704, 2816), (300, 8, 128, 704, 2816)] if CUDA else []),
)
def test_experts(dtype: torch.dtype, rows: int, top_k: int, count: int, width: int, size: int) -> None:
    """Experts that nobody chose, one that every row chose, tiles that the widths do not fill."""
    y = draw(rows, size, dtype=dtype)
    gate_up = draw(count, 2 * width, size, dtype=dtype, seed=1) / size**0.5
    down = draw(count, size, width, dtype=dtype, seed=2) / width**0.5
    scores = torch.rand(rows, count, generator=torch.Generator().manual_seed(3))
    scores[:, 1] = 2.0
    weights, chosen = scores.to(DEVICE).topk(top_k, dim=-1)
    close(experts.experts(y, weights, chosen, gate_up, down), reference.experts(y, weights, chosen, gate_up, down))
