"""Text for the drafter: what the target itself goes on to say, mixed with documents that it was trained on.

Half of the continuations are greedy, half sampled as Gemma samples by default. Knows nothing of assistants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from frostline.model.decoder import Decoder
from frostline.train.data import Documents, from_sequences, join, prompt_length
from frostline.train.evaluate import SAMPLED
from frostline.train.generate import Prompt, generate
from frostline.train.loops import loop_starts

_LONGEST_PROMPT = 320
_PROSE = (8, 48)


@dataclass(frozen=True, kw_only=True)
class OnPolicySettings:
    """rows_per_kind: continuations of each kind of text. corpus_share: part of the mix that is plain documents."""

    rows_per_kind: int = 6144
    max_new: int = 160
    batch: int = 2048
    corpus_share: float = 0.3
    seed: int = 0


def continuations(
    target: Decoder,
    kinds: Mapping[str, Documents],
    opening: Sequence[int],
    settings: OnPolicySettings,
    console: Console,
) -> Documents:
    """Prompts of training documents and what the target says next; loops are cut, prompts are quiet.

    opening: as in data.load_documents.
    """
    chooser = np.random.default_rng(settings.seed)
    prompts: list[Prompt] = []
    for documents in kinds.values():
        half = settings.rows_per_kind // 2
        greedy = chooser.permutation(len(documents))[:half]
        sampled = chooser.integers(0, len(documents), settings.rows_per_kind - len(greedy))
        for number, index in enumerate((*greedy, *sampled)):
            document = documents[int(index)]
            prose = int(chooser.integers(_PROSE[0], _PROSE[1] + 1))
            tokens = tuple(document[: prompt_length(document, opening, prose)].tolist())
            if not 0 < len(tokens) <= _LONGEST_PROMPT:
                continue
            prompt = Prompt(tokens=tokens, seed=settings.seed + len(prompts))
            if number >= len(greedy):
                prompt = replace(prompt, temperature=1.0, top_k=SAMPLED.top_k, top_p=SAMPLED.top_p)
            prompts.append(prompt)
    made = generate(
        target,
        prompts,
        max_new=settings.max_new,
        stop=target.spec.eos_token_ids,
        batch=settings.batch,
        console=console,
    )
    return from_sequences(
        ((*prompt.tokens, *new[:end]), len(prompt.tokens))
        for prompt, new, end in zip(prompts, made, loop_starts(made), strict=True)
    )


def drafter_text(own: Documents, kinds: Mapping[str, Documents], settings: OnPolicySettings) -> Documents:
    """The mix that the drafter trains on: every continuation, and corpus documents up to their share of the tokens."""
    corpus = join(list(kinds.values()))
    wanted = len(own.tokens) * settings.corpus_share / (1.0 - settings.corpus_share)
    order = np.random.default_rng(settings.seed).permutation(len(corpus))
    lengths = np.diff(corpus.offsets)[order]
    chosen = order[: int(np.searchsorted(lengths.cumsum(), wanted))]
    return join([own, corpus.select(chosen)]) if len(chosen) else own


def save_documents(documents: Documents, path: Path) -> None:
    np.savez_compressed(path, tokens=documents.tokens, offsets=documents.offsets, quiet=documents.quiet)


def read_documents(path: Path) -> Documents:
    held = np.load(path)
    return Documents(tokens=held["tokens"], offsets=held["offsets"], quiet=held["quiet"])
