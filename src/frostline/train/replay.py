"""The reference drafter: what an assistant drafts at every place of a finished text, and what of it would be accepted.

For text that the target wrote, the drafts at a place P depend on tokens 0..P only, so all places are drafted in
parallel over a dense forward, free-running: each depth feeds its own draft. Walking P -> P + accepted + 1 then gives
the accept length of real decoding. It knows nothing of pages, plans or the engine, so it can check them.

B sequences, T tokens, R rows (places), K drafts, V vocabulary, E backbone width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from frostline.model.assistant import Assistant
from frostline.model.attention import CausalContext, FrozenDenseContext
from frostline.model.decoder import Decoder
from frostline.runner.sampling import SamplingRows, choose, perturb, process
from frostline.types import Group

Ablation = Literal["none", "hidden", "kv"]
_HEAD_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class Text:
    """A prompt and what the target went on with: tokens[prompt_length:] came from it. seed: of its sampling."""

    kind: str
    tokens: tuple[int, ...]
    prompt_length: int
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the text was sampled and drafts are drawn. argmax_drafts: draft greedily although the text is sampled."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    argmax_drafts: bool = False


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """drafts [R, K] of one text at P = prompt_length, prompt_length + 1, ... (one row each), on the CPU.

    overlap [R]: sum of min(p, q) at depth 1, the best that any single draft could do; None with greedy drafts.
    """

    drafts: Tensor
    overlap: Tensor | None


@torch.no_grad()
def draft_everywhere(
    target: Decoder,
    assistant: Assistant,
    texts: Sequence[Text],
    *,
    num_steps: int,
    sampling: Sampling | None = None,
    ablation: Ablation = "none",
) -> list[Drafts]:
    """Free-running drafts at every place of every text whose bonus lies in the continuation.

    The row of P is i = P - 1: hidden of row i, bonus token i + 1 = P, keys 0..i. Draft s stands for position P + s.
    ablation: "hidden" zeroes the seed hidden, "kv" zeroes keys and values.
    """
    sampling = sampling or Sampling()
    device = target.device
    longest = max(len(t.tokens) for t in texts)
    tokens_BT = torch.tensor([list(t.tokens) + [0] * (longest - len(t.tokens)) for t in texts], device=device)
    positions_T = torch.arange(longest, device=device)
    causal = CausalContext(target.spec, target.rotary, positions_T)
    hidden = target(tokens_BT, causal)
    counts = [max(0, len(t.tokens) - t.prompt_length) for t in texts]
    batch_R = torch.repeat_interleave(torch.arange(len(texts)), torch.tensor(counts)).to(device)
    row_R = torch.cat([torch.arange(n) + t.prompt_length - 1 for n, t in zip(counts, texts, strict=True)]).to(device)

    kv: dict[Group, Tensor] = {kind: causal.kv[target.spec.last_owner(kind)] for kind in target.spec.ropes}
    seed_hidden = hidden
    if ablation == "kv":
        kv = {kind: torch.zeros_like(rows) for kind, rows in kv.items()}
    if ablation == "hidden":
        seed_hidden = torch.zeros_like(hidden)
    offset = 0 if assistant.spec.draft_position in (None, "P") else -1
    frozen = FrozenDenseContext(target.spec, assistant.rotary, kv=kv, positions_T=positions_T, offset=offset)
    rows = _sampling_rows(texts, sampling, hidden, batch_R)
    place = (batch_R, row_R)
    drafts_RK = _free_run(target, assistant, tokens_BT, seed_hidden, frozen, place, rows, num_steps, sampling.top_k)
    overlap_R = None
    if rows is not None and not sampling.argmax_drafts:
        overlap_R = _overlap(target, assistant, tokens_BT, hidden, seed_hidden, frozen, place, rows, sampling.top_k)
    drafts_by_text = torch.split(drafts_RK.cpu(), counts)
    overlaps = [None] * len(texts) if overlap_R is None else torch.split(overlap_R.cpu(), counts)
    return [Drafts(drafts=d, overlap=o) for d, o in zip(drafts_by_text, overlaps, strict=True)]


def _sampling_rows(texts: Sequence[Text], sampling: Sampling, hidden: Tensor, batch_R: Tensor) -> SamplingRows | None:
    if sampling.temperature <= 0:
        return None
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    like = torch.ones(len(batch_R), dtype=dtype, device=hidden.device)
    seed_B = torch.tensor([t.seed for t in texts], device=hidden.device)
    return SamplingRows(
        temperature=like * (0.0 if sampling.argmax_drafts else sampling.temperature),
        top_k=torch.full_like(batch_R, sampling.top_k),
        top_p=like * sampling.top_p,
        min_p=torch.zeros_like(like),
        seed=seed_B[batch_R],
    )


def _free_run(
    target: Decoder,
    assistant: Assistant,
    tokens_BT: Tensor,
    hidden: Tensor,
    frozen: FrozenDenseContext,
    place: tuple[Tensor, Tensor],
    rows: SamplingRows | None,
    num_steps: int,
    max_top_k: int,
) -> Tensor:
    """[R, K]. Rows that were not asked for read token 0 after the first depth; nobody looks at them."""
    batch_R, row_R = place
    token_BT = torch.cat((tokens_BT[:, 1:], torch.zeros_like(tokens_BT[:, :1])), dim=1)
    drafts: list[Tensor] = []
    for s in range(1, num_steps + 1):
        u, hidden = assistant.step(target.embed(token_BT), hidden, frozen)
        parts = []
        for part in torch.split(torch.arange(len(row_R), device=row_R.device), _HEAD_ROWS):
            score = draft_logits(assistant, u[batch_R[part], row_R[part]])
            if rows is not None:
                position = row_R[part] + 1 + s
                score = perturb(score, _take(rows, part), position, sampled=True, filtered=True, max_top_k=max_top_k)
            parts.append(choose(score))
        token_R = torch.cat(parts)
        drafts.append(token_R)
        token_BT = torch.zeros_like(tokens_BT).index_put((batch_R, row_R), token_R)
    return torch.stack(drafts, dim=1)


def _overlap(
    target: Decoder,
    assistant: Assistant,
    tokens_BT: Tensor,
    hidden: Tensor,
    seed_hidden: Tensor,
    frozen: FrozenDenseContext,
    place: tuple[Tensor, Tensor],
    rows: SamplingRows,
    max_top_k: int,
) -> Tensor:
    """sum of min(p, q) at depth 1, [R]: p the target's distribution after token i + 1, q the drafter's, both filtered.

    The last place of a text has no token to compare with and its row of the target may be padding: nobody looks at it.
    """
    batch_R, row_R = place
    u, _ = assistant.step(target.embed(tokens_BT.roll(-1, 1)), seed_hidden, frozen)
    parts = []
    for part in torch.split(torch.arange(len(row_R), device=row_R.device), _HEAD_ROWS):
        b, i = batch_R[part], row_R[part]
        chosen = _take(rows, part)
        after = target.logits(hidden[b, (i + 1).clamp(max=hidden.shape[1] - 1)])
        p = process(after, chosen, max_top_k=max_top_k).softmax(-1)
        q = process(draft_logits(assistant, u[b, i]), chosen, max_top_k=max_top_k).softmax(-1)
        parts.append(torch.minimum(p, q).sum(-1))
    return torch.cat(parts)


def draft_logits(assistant: Assistant, u_Rd: Tensor) -> Tensor:
    """Logits [R, V] of what the head may draft, by definition: dense, and -inf outside the best centroids' tokens."""
    logits = assistant.dense_logits(u_Rd)
    if not assistant.spec.ordered:
        return logits
    head = assistant.masked_embedding
    best = head.centroids(u_Rd).topk(assistant.spec.top_centroids, dim=-1).indices
    allowed = torch.zeros(len(u_Rd), assistant.spec.num_centroids, dtype=torch.bool, device=u_Rd.device)
    allowed.scatter_(1, best, True)
    size = logits.shape[1] // assistant.spec.num_centroids
    cluster_V = torch.empty_like(head.token_ordering)
    cluster_V[head.token_ordering] = torch.arange(logits.shape[1], device=u_Rd.device) // size
    return logits.masked_fill(~allowed[:, cluster_V], -torch.inf)


def _take(rows: SamplingRows, part: Tensor) -> SamplingRows:
    return SamplingRows(
        temperature=rows.temperature[part],
        top_k=rows.top_k[part],
        top_p=rows.top_p[part],
        min_p=rows.min_p[part],
        seed=rows.seed[part],
    )


def accepted_run(tokens: Sequence[int], place: int, drafts: Sequence[int]) -> int:
    """How many drafts at P = place equal the text: draft s stands for tokens[P + s]."""
    count = 0
    while count < len(drafts) and drafts[count] == tokens[place + count + 1]:
        count += 1
    return count


def walk(text: Text, drafts_RK: Tensor) -> list[tuple[int, int]]:
    """(P, accepted) of every iteration that decoding this text would make, as long as all K drafts can be judged."""
    num_steps = drafts_RK.shape[1]
    place, visited = text.prompt_length, []
    by_row = drafts_RK.tolist()
    while place + num_steps < len(text.tokens):
        accepted = accepted_run(text.tokens, place, by_row[place - text.prompt_length])
        visited.append((place, accepted))
        place += accepted + 1
    return visited
