"""Debug mode: every token id that goes to the device side or comes back is looked at.

A placeholder that leaks into an input reads another row of the embedding table, or stops a GPU hours later with an
assert that names nobody. Here it is refused where it passes, with the request's row. Not used unless asked for: an
engine runs on the executor itself, or on this one around it. Knows the vocabulary's size and steps; no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from frostline.runner.rules import LogitRules
from frostline.speculative.step import AroundExecutor, Executor, Step, StepResult


class TokenIdError(AssertionError):
    """Our own mistake: an id outside the vocabulary inside the engine. A user's are refused on arrival."""


class CheckedExecutor(AroundExecutor):
    """An Executor around another that refuses token ids outside `[0, vocab_size)`.

    Looked at: what a step brings to the device, and of each result the first tokens, runs and, where the inner executor
    records them, drafted nodes. `launch` and `collect` raise TokenIdError. Results with numbers that are not finite
    mean nothing and are let pass.
    """

    def __init__(self, inner: Executor, *, vocab_size: int) -> None:
        super().__init__(inner)
        self._vocab_size = vocab_size

    def launch(self, step: Step) -> Any:
        """Hand on a step whose ids are all in the vocabulary."""
        for init in step.inits:
            self._check(() if init.rules is None else ids_of(init.rules), f"the rules of row {init.row}")
        for chunk in step.prefill:
            bonus = () if chunk.bonus is None else (chunk.bonus,)
            self._check((*chunk.tokens, *bonus), f"the prompt chunk of row {chunk.row} from {chunk.start}")
        return self._inner.launch(step)

    def collect(self, flight: Any) -> StepResult:
        """Hand on a result whose ids are all in the vocabulary."""
        result = self._inner.collect(flight)
        for seed in result.seeds:
            if seed.finite:
                self._check((seed.token,), f"the first token of row {seed.row}")
        for run in result.runs:
            if run.finite:
                self._check(run.tokens, f"the run of row {run.row}")
                self._check(() if run.nodes is None else run.nodes.tokens, f"the drafts of row {run.row}")
        return result

    def _check(self, ids: Iterable[int], where: str) -> None:
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise TokenIdError(f"token id {token} in {where} is outside the vocabulary of {self._vocab_size}")


def ids_of(rules: LogitRules) -> Iterator[int]:
    """Every id that the rules name."""
    yield from (*rules.prompt_ids, *rules.output_ids, *(rules.allowed or ()))
    yield from (token for token, _ in (*rules.bias, *rules.earliest))
