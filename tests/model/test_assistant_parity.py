"""The assistant against transformers at every depth, and its ways of attending against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from frostline.model.assistant import Assistant
from frostline.model.attention import CausalContext, FrozenDenseContext
from frostline.model.decoder import Decoder
from frostline.model.loader import load_assistant, load_target
from tests.model.paged import Paged
from tests.model.test_parity import LENGTH, Watch
from tests.model.tiny import KINDS, VOCAB, WINDOW, tiny_assistant, tiny_target

DEPTHS = 5
# Committed lengths: the shortest, at most W - 1 rows, exactly W, and well past the window.
LENGTHS = torch.tensor([1, WINDOW - 1, WINDOW, LENGTH - 1])
OFFSETS = {"P": 0, "P-1": -1}
HEADS = {"centroids": True, "dense": False}


@dataclass
class Pair:
    """Both oracles, ours in float32 and float64, and one sequence per committed length."""

    target_oracle: Any
    oracle: Any
    single: tuple[Decoder, Assistant]
    double: tuple[Decoder, Assistant]
    tokens: Tensor


@pytest.fixture(scope="module", params=[(kind, head) for kind in KINDS for head in HEADS], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    kind, head = request.param
    folder = tmp_path_factory.mktemp(kind)
    target, assistant = tiny_target(kind), tiny_assistant(kind, ordered=HEADS[head])
    target.save_pretrained(folder / "tiny")
    assistant.save_pretrained(folder / "tiny-assistant")

    def ours(dtype: torch.dtype) -> tuple[Decoder, Assistant]:
        decoder = load_target(folder / "tiny", dtype=dtype, device="cpu").eval()
        drafter = load_assistant(folder / "tiny-assistant", decoder.spec, dtype=dtype, device="cpu").eval()
        return decoder, drafter

    tokens = torch.randint(0, VOCAB, (len(LENGTHS), LENGTH), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        yield Pair(target, assistant, ours(torch.float32), ours(torch.float64), tokens)


def _seeded(pair: tuple[Decoder, Assistant], tokens: Tensor) -> tuple[Paged, Tensor]:
    """The first LENGTHS[b] tokens of each row in the cache, and the hidden state of the last of them."""
    paged = Paged(pair[0], len(LENGTHS))
    base = torch.zeros_like(LENGTHS)
    return paged, paged.forward(tokens[:, : int(LENGTHS.max())], base, length_B=LENGTHS, last_B=LENGTHS - 1)


def _draft_tokens(frontier: int = 1) -> Tensor:
    return torch.randint(0, VOCAB, (DEPTHS, len(LENGTHS), frontier), generator=torch.Generator().manual_seed(4))


def _ours(pair: tuple[Decoder, Assistant], tokens: Tensor, drafts: Tensor, offset: int) -> list[tuple[Tensor, Tensor]]:
    """(u, next hidden) of every depth, [B, Q, ...], all frontier rows seeded alike."""
    decoder, assistant = pair
    paged, hidden = _seeded(pair, tokens)
    hidden = hidden.expand(-1, drafts.shape[2], -1)
    context = paged.frozen(assistant.rotary, LENGTHS, offset)
    steps = []
    for token in drafts:
        u, hidden = assistant.step(decoder.embed(token), hidden, context)
        steps.append((u, hidden))
    return steps


def _theirs(pair: Pair, request: int, drafts: Tensor, offset: int) -> list[tuple[Tensor, Tensor]]:
    """(logits [V], next hidden) of every depth from transformers, shown the rows that our window predicate shows."""
    length = int(LENGTHS[request])
    out = pair.target_oracle(
        pair.tokens[request : request + 1, :length], output_hidden_states=True, return_shared_kv_states=True
    )
    shared, hidden = dict(out.shared_kv_states), out.hidden_states[-1][:, -1:]
    first = max(0, length + offset - WINDOW + 1)
    shared["sliding_attention"] = tuple(x[:, :, first:] for x in shared["sliding_attention"])
    embed = pair.target_oracle.get_input_embeddings()
    position = torch.tensor([[length + offset]])
    steps = []
    for token in drafts[:, request]:
        step = pair.oracle(
            inputs_embeds=torch.cat((embed(token.unsqueeze(0)), hidden), -1),
            position_ids=position,
            shared_kv_states=shared,
        )
        hidden = step.last_hidden_state
        steps.append((step.logits[0, 0], hidden[0, 0]))
    return steps


@pytest.mark.parametrize("position", OFFSETS)
def test_logits_and_hidden_equal_transformers_at_every_depth(pair: Pair, position: str) -> None:
    drafts, assistant = _draft_tokens(), pair.single[1]
    ours = _ours(pair.single, pair.tokens, drafts, OFFSETS[position])
    for request in range(len(LENGTHS)):
        for (u, hidden), (logits, reference) in zip(
            ours, _theirs(pair, request, drafts, OFFSETS[position]), strict=True
        ):
            assert (hidden[request, 0] - reference).abs().max() < 1e-4
            head = assistant.head(u[request])
            if head.token_ids is None:
                assert (head.logits[0] - logits).abs().max() < 1e-4
                continue
            # transformers fills every other token with one value below the lowest candidate.
            candidates = (logits > logits.min()).nonzero().flatten()
            assert torch.equal(head.token_ids[0].sort().values, candidates)
            assert (head.logits[0] - logits[head.token_ids[0]]).abs().max() < 1e-4


def test_head_equals_the_dense_logits_of_its_candidates(pair: Pair) -> None:
    assistant = pair.double[1]
    u = torch.randn(7, assistant.spec.text.hidden_size, generator=torch.Generator().manual_seed(6)).double()
    head, dense = assistant.head(u), assistant.dense_logits(u)
    assert dense.shape == (7, VOCAB)
    expected = dense if head.token_ids is None else dense.gather(1, head.token_ids)
    assert (head.logits - expected).abs().max() < 1e-9


@pytest.mark.parametrize("position", OFFSETS)
def test_a_frontier_of_several_rows_equals_each_row_alone(pair: Pair, position: str) -> None:
    drafts = _draft_tokens(frontier=3)
    together = _ours(pair.double, pair.tokens, drafts, OFFSETS[position])
    for row in range(3):
        alone = _ours(pair.double, pair.tokens, drafts[:, :, row : row + 1], OFFSETS[position])
        for ours, reference in zip(together, alone, strict=True):
            for part, expected in zip(ours, reference, strict=True):
                assert (part[:, row : row + 1] - expected).abs().max() < 1e-9


@pytest.mark.parametrize("position", OFFSETS)
def test_the_training_pass_equals_drafting_at_every_length(pair: Pair, position: str) -> None:
    decoder, assistant = pair.double
    dense = CausalContext(decoder.spec, decoder.rotary, torch.arange(LENGTH))
    seeds = decoder(pair.tokens, dense)
    drafts = torch.randint(0, VOCAB, (DEPTHS, *pair.tokens.shape), generator=torch.Generator().manual_seed(7))
    training = FrozenDenseContext(
        decoder.spec,
        assistant.rotary,
        kv={kind: dense.kv[decoder.spec.last_owner(kind)] for kind in ("sliding", "full")},
        positions_T=torch.arange(LENGTH),
        offset=OFFSETS[position],
    )
    row, hidden, all_steps = torch.arange(len(LENGTHS)), seeds, []
    for token in drafts:
        u, hidden = assistant.step(decoder.embed(token), hidden, training)
        all_steps.append((u, hidden))
    drafted = drafts[:, row, LENGTHS - 1].unsqueeze(2)
    for ours, reference in zip(_ours(pair.double, pair.tokens, drafted, OFFSETS[position]), all_steps, strict=True):
        for part, expected in zip(ours, reference, strict=True):
            assert (part[:, 0] - expected[row, LENGTHS - 1]).abs().max() < 1e-9


def test_drafting_reads_the_targets_rows_and_no_later_ones(pair: Pair) -> None:
    decoder, assistant = pair.double
    drafts = _draft_tokens()
    before = _ours(pair.double, pair.tokens, drafts, 0)
    later = pair.tokens.clone()
    for request, length in enumerate(LENGTHS.tolist()):
        later[request, length:] = (later[request, length:] + 1) % VOCAB
    paged, hidden = _seeded(pair.double, later)
    # Rows beyond the committed length, as a rejected verify leaves them, with a bound that covers them.
    paged.forward(later[torch.arange(len(LENGTHS)), LENGTHS.clamp(max=LENGTH - 1)].unsqueeze(1), LENGTHS)
    context = paged.frozen(assistant.rotary, LENGTHS, 0, kv_bound=LENGTH + 9)
    for token, (u, _) in zip(drafts, before, strict=True):
        step, hidden = assistant.step(decoder.embed(token), hidden, context)
        assert (step - u).abs().max() < 1e-9


def test_float64_drafting_makes_no_narrower_float(pair: Pair) -> None:
    seen: set[torch.dtype] = set()
    with Watch(seen):
        for u, _ in _ours(pair.double, pair.tokens, _draft_tokens(), 0):
            pair.double[1].head(u[:, 0])
    assert torch.float64 in seen
    assert not seen & {torch.float32, torch.bfloat16, torch.float16}
