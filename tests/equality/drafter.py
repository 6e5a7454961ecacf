"""The reference drafter: what should have been drafted, written from design and checkpoint, not from the engine.

It reads the assistant's weights from its file by their checkpoint names, attends to plain contiguous rows, grows trees
in Python lists and asks for noise one token at a time. Of the project it uses the target's dense forward alone, for the
rows that a request's known tokens leave and for the hidden states above them. Sources: gemma4.md 1.5 and 3,
speculation.md 1.3 and 1.4, architecture.md 4.3 and 4.5.

F frontier nodes, S rows, H query heads, d assistant width, E backbone width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import Tensor

from frostline.bundled import bundled_path
from frostline.model.attention import CausalContext
from frostline.model.decoder import Decoder
from frostline.speculative.step import RowInit
from tests.equality.bundled import ASSISTANT, TARGET
from tests.sampling.reference import keep, noise, processed

_EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """What to draft: steps `K`, children `k`, nodes `N`, the position's offset from `P`, with the target's noise?"""

    steps: int
    topk: int
    width: int
    offset: int = 0
    coupled: bool = True


@dataclass(frozen=True)
class Known:
    """A dense forward over a request's tokens. k, v [S, hd] of the owners that the assistant reads; hidden [S, E]."""

    tokens: tuple[int, ...]
    kv: dict[str, tuple[Tensor, Tensor]]
    hidden: Tensor


@dataclass(frozen=True)
class Node:
    """A frontier node: its place among the candidates (-1: the root), token, hidden [E], cumulative score.

    path: the tokens drafted above it, its own included.
    """

    place: int
    token: int
    hidden: Tensor
    score: float
    path: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    score: float
    token: int
    parent: int
    path: tuple[int, ...]


class ReferenceDrafter:
    def __init__(self, target: Decoder) -> None:
        self._target = target
        folder = bundled_path(ASSISTANT)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._text, self._centroids = config["text_config"], config["num_centroids"]
        self._top_centroids = config["centroid_intermediate_top_k"]
        stored = load_file(folder / "model.safetensors")
        self._weights = {name: w.double() if w.is_floating_point() else w for name, w in stored.items()}
        table = load_file(bundled_path(TARGET) / "model.safetensors")
        self._embed = next(w for name, w in table.items() if name.endswith("embed_tokens.weight")).double()
        wide = json.loads((bundled_path(TARGET) / "config.json").read_text(encoding="utf-8"))
        types = wide["layer_types"][: wide["num_hidden_layers"] - wide["num_kv_shared_layers"]]
        self._owner = {kind: len(types) - 1 - types[::-1].index(kind) for kind in set(types)}

    def know(self, tokens: Sequence[int]) -> Known:
        """Rows of all tokens at once: a row never depends on a later token, so `[0, P)` of it serves every P."""
        context = CausalContext(self._target.spec, self._target.rotary, torch.arange(len(tokens)))
        with torch.inference_mode():
            hidden = self._target(torch.tensor([list(tokens)]), context)[0]
        kv = {}
        for kind, owner in self._owner.items():
            heads = context.kv[owner][0]
            assert heads.shape[1] == 2, "the bundled pair has one key head"
            kv[kind] = heads[:, 0], heads[:, 1]
        return Known(tokens=tuple(tokens), kv=kv, hidden=hidden)

    @torch.inference_mode()
    def draft(self, known: Known, place: int, shape: Shape, init: RowInit) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(tokens, parents) of the nodes at `P = place`, the bonus token first."""
        root = Node(place=-1, token=known.tokens[place], hidden=known.hidden[place - 1], score=0.0, path=())
        frontier, candidates = [root], list[Candidate]()
        for depth in range(shape.steps):
            scored, following = self._children(known, place, depth, frontier, shape, init)
            level: list[tuple[int, Candidate, Tensor]] = []
            for node, children, hidden in zip(frontier, scored, following, strict=True):
                for score, token in children[: shape.topk]:
                    candidate = Candidate(node.score + score, token, node.place, path=(*node.path, token))
                    level.append((len(candidates), candidate, hidden))
                    candidates.append(candidate)
            best = sorted(level, key=lambda entry: (-entry[1].score, entry[0]))[: shape.topk]
            frontier = [Node(place=n, token=c.token, hidden=h, score=c.score, path=c.path) for n, c, h in best]
        chosen = sorted(sorted(range(len(candidates)), key=lambda n: (-candidates[n].score, n))[: shape.width - 1])
        node_of = {-1: 0} | {place: number for number, place in enumerate(chosen, start=1)}
        tokens = (root.token, *(candidates[n].token for n in chosen))
        return tokens, (-1, *(node_of[candidates[n].parent] for n in chosen))

    def _children(
        self, known: Known, place: int, depth: int, frontier: list[Node], shape: Shape, init: RowInit
    ) -> tuple[list[list[tuple[float, int]]], Tensor]:
        """For every frontier node its best (log score, token) in descending order, and the next hidden [F, E]."""
        embedded = self._embed[[node.token for node in frontier]] * math.sqrt(self._embed.shape[1])
        x = torch.cat((embedded, torch.stack([node.hidden for node in frontier])), dim=1)
        x = x @ self._weights["pre_projection.weight"].T
        for number, kind in enumerate(self._text["layer_types"]):
            x = self._layer(x, number, kind, known, place, place + shape.offset)
        u = _norm(x, self._weights["model.norm.weight"])
        output = known.tokens[init.prompt_len : place + 1]
        scored = [
            self._scores(row, place + depth + 1, shape, init, (*output, *node.path))
            for row, node in zip(u, frontier, strict=True)
        ]
        return scored, u @ self._weights["post_projection.weight"].T

    def _layer(self, x: Tensor, number: int, kind: str, known: Known, place: int, position: int) -> Tensor:
        def weight(name: str) -> Tensor:
            return self._weights[f"model.layers.{number}.{name}"]

        full = kind == "full_attention"
        width = self._text["global_head_dim"] if full else self._text["head_dim"]
        first = 0 if full else max(0, position - self._text["sliding_window"] + 1)
        keys, values = (rows[first:place] for rows in known.kv[kind])
        h = _norm(x, weight("input_layernorm.weight")) @ weight("self_attn.q_proj.weight").T
        q = self._rope(_norm(h.view(len(x), -1, width), weight("self_attn.q_norm.weight")), kind, position)
        attended = (q @ keys.T).softmax(-1) @ values
        out = attended.flatten(1) @ weight("self_attn.o_proj.weight").T
        x = x + _norm(out, weight("post_attention_layernorm.weight"))
        h = _norm(x, weight("pre_feedforward_layernorm.weight"))
        gate = torch.nn.functional.gelu(h @ weight("mlp.gate_proj.weight").T, approximate="tanh")
        out = (gate * (h @ weight("mlp.up_proj.weight").T)) @ weight("mlp.down_proj.weight").T
        return (x + _norm(out, weight("post_feedforward_layernorm.weight"))) * weight("layer_scalar")

    def _rope(self, q_FHd: Tensor, kind: str, position: int) -> Tensor:
        rope, width = self._text["rope_parameters"][kind], q_FHd.shape[-1]
        turning = int(rope.get("partial_rotary_factor", 1.0) * width // 2)
        rate = [rope["rope_theta"] ** (-2 * j / width) if j < turning else 0.0 for j in range(width // 2)]
        angle = torch.tensor(rate * 2, dtype=torch.float64) * position
        low, high = q_FHd.chunk(2, dim=-1)
        return q_FHd * angle.cos() + torch.cat((-high, low), dim=-1) * angle.sin()

    def _scores(
        self, u_d: Tensor, position: int, shape: Shape, init: RowInit, output: Sequence[int]
    ) -> list[tuple[float, int]]:
        """Candidates of one node, best first, with their log scores under the rule of architecture 4.3.

        output: what the request has emitted when this node's child is chosen, the node's own path included.
        """
        centroid = (self._weights["masked_embedding.centroids.weight"] @ u_d).tolist()
        best = sorted(range(self._centroids), key=lambda c: -centroid[c])[: self._top_centroids]
        tokens = self._weights["masked_embedding.token_ordering"].view(self._centroids, -1)[best].flatten().tolist()
        score = (self._weights["model.embed_tokens.weight"][tokens] @ u_d).tolist()
        if init.rules is not None:
            score = processed(score, init.rules, output, position, tokens)
        if init.temperature > 0 and shape.coupled:
            tempered = [value / init.temperature for value in score]
            kept = keep(tempered, init.top_k, init.top_p, init.min_p)
            score = [
                value + noise(init.seed, position, tokens[n]) if n in kept else -math.inf
                for n, value in enumerate(tempered)
            ]
        highest = max(score)
        if highest == -math.inf:  # all candidates are masked
            return [(-math.inf, token) for token in tokens[:8]]
        total = highest + math.log(math.fsum(math.exp(value - highest) for value in score))
        order = sorted(range(len(score)), key=lambda n: (-score[n], n))[:8]
        return [(score[n] - total, tokens[n]) for n in order]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt() * weight


def accepted_of(nodes: tuple[tuple[int, ...], tuple[int, ...]], run: Sequence[int], cap: int) -> int:
    """How many drafts of these nodes a request is owed whose next tokens are `run` and whose own depth is `cap`."""
    tokens, parents = nodes
    node, accepted = 0, 0
    for token in run[:cap]:
        children = [n for n in range(1, len(tokens)) if parents[n] == node and tokens[n] == token]
        if not children:
            break
        node, accepted = children[0], accepted + 1
    return accepted
