"""The requests of a throughput run: the user's prompts, the bundled held-out ones, or some of the lengths asked for.

Knows prompts, lengths and arrival times; nothing of how they are served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from random import Random

from frostline.cli.heldout import held_out
from frostline.cli.loading import Prompt, gather_prompts
from frostline.errors import ConfigError
from frostline.types import SamplingParams

RANDOM_IDS = (5, 500)  # ordinary tokens in every vocabulary
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Work:
    """One request."""

    prompt: Prompt
    params: SamplingParams


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A range of token counts, both ends included; every one as likely as the others."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, option: str) -> Lengths:
        """From "128" or "32:512". Raises ConfigError for anything else, naming the option."""
        low, colon, high = text.partition(":")
        if not low.isdecimal() or (colon and not high.isdecimal()):
            raise ConfigError(
                f"{option} must be a number of tokens such as 128, or a range such as 32:512; got {text!r}"
            )
        found = cls(low=int(low), high=int(high) if colon else int(low))
        if not 1 <= found.low <= found.high:
            raise ConfigError(f"{option} must be at least 1 and rise, got {text!r}")
        return found

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


def make_prompts(
    prompt_file: Path | None, lengths: Lengths | None, count: int, *, encode: Encode | None, seed: int
) -> list[Prompt]:
    """`count` prompts: the file's, or held-out ones, in turn; with `lengths`, held-out text cut to drawn lengths.

    encode: None where there is no tokenizer; drawn lengths are then of random tokens. Raises ConfigError where the file
    and lengths are both given, or the count is not positive.
    """
    if count < 1:
        raise ConfigError(f"--num-prompts must be at least 1, got {count}")
    if lengths is None:
        texts = gather_prompts(None, prompt_file) if prompt_file else [item.prompt for item in held_out(count)]
        return list(islice(cycle(texts), count))
    if prompt_file is not None:
        raise ConfigError("--prompt-file and --input-len both say what the prompts are; give one of them")
    random = Random(seed)
    wanted = [lengths.draw(random) for _ in range(count)]
    if encode is None:
        return [[random.randrange(*RANDOM_IDS) for _ in range(length)] for length in wanted]
    texts_as_ids = [encode(item.prompt) for item in held_out(max(count, 64))]
    random.shuffle(texts_as_ids)
    return [_cut(texts_as_ids, number, length) for number, length in enumerate(wanted)]


def make_work(prompts: Sequence[Prompt], params: SamplingParams, lengths: Lengths, *, seed: int) -> list[Work]:
    """Requests that run to drawn lengths, each with a seed of its own."""
    random = Random(seed + 1)
    return [
        Work(prompt=prompt, params=replace(params, max_tokens=lengths.draw(random), seed=(params.seed or 0) + number))
        for number, prompt in enumerate(prompts)
    ]


def arrivals(number: int, rate: float, *, seed: int) -> list[float]:
    """Seconds after the start at which requests arrive: a Poisson process of `rate` per second."""
    random, now, times = Random(seed + 2), 0.0, []
    for _ in range(number):
        times.append(now)
        now += random.expovariate(rate)
    return times


def _cut(texts: Sequence[Sequence[int]], first: int, length: int) -> list[int]:
    """So many ids of the texts, from number `first` on: prompts differ from their first tokens on."""
    ids: list[int] = []
    for at in count(first):
        ids += texts[at % len(texts)]
        if len(ids) >= length:
            return ids[:length]
    raise AssertionError("texts are not empty")
