"""The drafter trainer: contexts equal the oracle, the loss pairs the right rows, clusters are balanced, losses fall."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from rich.console import Console

from frostline.errors import ConfigError
from frostline.model.attention import CausalContext, FrozenDenseContext
from frostline.train.clusters import token_ordering
from frostline.train.data import Packer, from_sequences, prompt_length, quiet_tokens
from frostline.train.dense import CausalBlocks, FrozenBlocks, last_owners
from frostline.train.drafter import DrafterSettings, draft_losses, observe, train_drafter
from frostline.train.evaluate import tallied
from frostline.train.loop import Optimiser
from frostline.train.pretrain import PretrainSettings, pretrain
from frostline.train.replay import Text, draft_everywhere
from frostline.train.schedule import Budget, learning_rate
from tests.train import toy

CPU = torch.device("cpu")


def silent() -> Console:
    return Console(file=io.StringIO())


@pytest.mark.parametrize("length", [5, 16, 17, 24, 43])
def test_causal_blocks_equal_the_dense_oracle(length: int) -> None:
    target = toy.toy_target(torch.float64)
    tokens = torch.randint(0, toy.VOCAB, (2, length), generator=torch.Generator().manual_seed(length))
    dense = CausalContext(target.spec, target.rotary, torch.arange(length))
    blocks = CausalBlocks(target.spec, target.rotary, length, CPU)
    torch.testing.assert_close(target(tokens, blocks), target(tokens, dense), rtol=1e-10, atol=1e-10)
    assert blocks.kv.keys() == dense.kv.keys()


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize("length", [7, 31])
def test_frozen_blocks_equal_the_dense_oracle(length: int, offset: int) -> None:
    target = toy.toy_target(torch.float64)
    assistant = toy.toy_assistant(target)
    tokens = torch.randint(0, toy.VOCAB, (2, length), generator=torch.Generator().manual_seed(length))
    causal = CausalContext(target.spec, target.rotary, torch.arange(length))
    hidden, embedding = target(tokens, causal), target.embed(tokens)
    kv = last_owners(target.spec, causal.kv)
    dense = FrozenDenseContext(target.spec, assistant.rotary, kv=kv, positions_T=torch.arange(length), offset=offset)
    blocks = FrozenBlocks(target.spec, assistant.rotary, kv=kv, length=length, offset=offset, device=CPU)
    for mine, theirs in zip(
        assistant.step(embedding, hidden, blocks), assistant.step(embedding, hidden, dense), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("position", ["P", "P-1"])
def test_loss_pairs_each_depth_with_the_rows_that_decoding_would(position: str) -> None:
    """Row by row, request by request: what drafting after i + 1 rows would compute, against the target's logits."""
    target = toy.toy_target(torch.float64)
    assistant = toy.toy_assistant(target, position=position)
    length, depths = 19, 3
    tokens = torch.randint(0, toy.VOCAB, (1, length + 1), generator=torch.Generator().manual_seed(5))
    weight = torch.rand((1, length + 1), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    settings = DrafterSettings(depths=depths, depth_decay=1.0, centroid_weight=0.0)
    _, divergence, agreement = draft_losses(assistant, observe(target, assistant, tokens), tokens, weight, settings)

    ids = tokens[0].tolist()
    hidden, _ = toy.target_rows(target, ids[:-1])
    teacher = target.logits(hidden)[0].log_softmax(-1)
    sums, hits, weights = [0.0] * depths, [0.0] * depths, [0.0] * depths
    for i in range(length):
        rows, context = toy.target_rows(target, ids[: i + 1])
        state = rows[0, -1]
        for s in range(1, depths + 1):
            if i + s > length - 1:
                break
            u, state = toy.draft_step(target, assistant, context, i + 1, ids[i + s], state)
            draft = assistant.dense_logits(u).log_softmax(-1)
            wanted, w = teacher[i + s], weight[0, i + s + 1].item()
            sums[s - 1] += w * (wanted.exp() * (wanted - draft)).sum().item()
            hits[s - 1] += w * float(wanted.argmax() == draft.argmax())
            weights[s - 1] += w
    for s in range(depths):
        assert divergence[s].item() == pytest.approx(sums[s] / weights[s], rel=1e-9)
        assert agreement[s].item() == pytest.approx(hits[s] / weights[s], rel=1e-6)


def test_gradients_reach_every_weight_of_the_assistant_and_none_of_the_target() -> None:
    target = toy.toy_target()
    assistant = toy.toy_assistant(target).train()
    tokens = torch.randint(0, toy.VOCAB, (2, 25), generator=torch.Generator().manual_seed(1))
    settings = DrafterSettings(depths=2)
    teacher = observe(target, assistant, tokens)
    assert not any(rows.requires_grad for rows in (teacher.hidden, teacher.embedding, *teacher.kv.values()))
    loss, _, _ = draft_losses(assistant, teacher, tokens, torch.ones(tokens.shape), settings)
    loss.backward()
    untouched = [n for n, p in assistant.named_parameters() if p.requires_grad and not p.grad.abs().max() > 0]
    assert untouched == []
    assert all(p.grad is None for p in target.parameters())


def test_clusters_are_balanced_deterministic_and_keep_like_tokens_together() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, 16, generator=generator)
    owner = torch.arange(64) % 8
    table = centres[owner] + 0.01 * torch.randn(64, 16, generator=generator)
    order = token_ordering(table, 8)
    assert order.sort().values.tolist() == list(range(64))
    assert torch.equal(order, token_ordering(table.clone(), 8))
    # Halving by one direction may cut a group, but most clusters of eight hold one kind of token.
    assert sum(len(set(owner[group].tolist())) == 1 for group in order.view(8, 8)) >= 6
    with pytest.raises(ConfigError, match="power of two"):
        token_ordering(table, 6)


def test_training_makes_a_pair_that_drafts_well() -> None:
    """A text of fixed phrases in random order: inside a phrase the next tokens are certain."""
    chooser = np.random.default_rng(0)
    phrases = [chooser.integers(3, toy.VOCAB, 9).tolist() for _ in range(6)]
    rows = [([2, *(t for k in chooser.integers(0, 6, 5) for t in phrases[k])], 1) for _ in range(120)]
    documents = from_sequences(rows)
    target = toy.toy_target()
    fast = Optimiser(peak=1e-2)
    settings = PretrainSettings(batch_tokens=768, length=48, held_out_tokens=192, optimiser=fast)
    result = pretrain(target, documents, {"toy": documents}, Budget(steps=70), settings, silent())
    assert result["curve"][0]["loss"] > 3.5
    assert result["held_out"]["held_out_toy"] < 0.5

    assistant = toy.toy_assistant(target)
    texts = [Text(kind="toy", tokens=tuple(tokens), prompt_length=10) for tokens, _ in rows[:12]]

    def accept_length() -> float:
        drafted = [(d.drafts, d.overlap) for d in draft_everywhere(target, assistant, texts, num_steps=3)]
        return float(tallied(texts, drafted, 3)["overall"]["accept_length"])

    before = accept_length()
    packer = Packer(documents, batch_tokens=768, device=CPU, seed=0)
    drafting = DrafterSettings(batch_tokens=768, length=48, depths=3, optimiser=fast)
    curve = train_drafter(assistant, target, packer, Budget(steps=101), drafting, silent())["curve"]
    assert curve[-1]["kl1"] < 0.3 * curve[0]["kl1"]
    assert curve[-1]["kl3"] < 0.6 * curve[0]["kl3"]
    assert accept_length() > max(2.2, before + 1.0)


def test_packer_shuffles_whole_documents_and_weights_prompts_less() -> None:
    rows = [([2, *range(10 * k, 10 * k + 9)], 4) for k in range(1, 9)]
    packer = Packer(from_sequences(rows), batch_tokens=40, device=CPU, seed=0)
    tokens, weight = packer.draw(20)
    assert tokens.shape == weight.shape == (2, 21)
    flat = tokens[0].tolist()
    start = flat.index(2)
    document = flat[start : start + 10]
    assert document in [tokens for tokens, _ in rows]
    assert weight[0, start : start + 10].tolist() == pytest.approx([0.3] * 4 + [1.0] * 6)
    firsts = {tuple(packer.draw(20)[0][0].tolist()) for _ in range(6)}
    assert len(firsts) > 1
    assert packer.epochs > 1


def test_only_turns_that_are_not_the_models_are_quiet() -> None:
    user, model, line = 200, 300, 400
    tokens = np.array([2, 105, user, line, 7, 106, line, 105, model, line, 8, 9, 106, 1, 2, 11, 1], dtype=np.uint16)
    assert np.flatnonzero(quiet_tokens(tokens, model)).tolist() == [2, 3, 4, 5]
    assert prompt_length(tokens[:14], [105, model, line]) == 10
    assert prompt_length(tokens[14:], [105, model, line], prose=2) == 2


def test_schedule_follows_the_clock_and_ends() -> None:
    now = [0.0]
    budget = Budget(minutes=1.0, clock=lambda: now[0])
    now[0] = 15.0
    budget.start()
    assert budget.fraction(0) == 0.0
    now[0] = 37.5
    assert budget.fraction(10) == pytest.approx(0.5)
    now[0] = 60.0
    assert budget.fraction(11) == 1.0
    assert learning_rate(1.0, 1.0) == 0.0
    assert max(learning_rate(1.0, f / 100) for f in range(101)) <= 1.0
    with pytest.raises(ConfigError, match="minutes or"):
        Budget()
