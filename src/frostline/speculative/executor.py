"""The device side of the engine: owns models, KV pools and rows, and runs steps in order.

Knows rows and pages by number; whose they are, and when a request ends, is the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.cache.pool import KVCache
from frostline.config import DraftPosition, EngineConfig, SpeculativeConfig
from frostline.errors import ConfigError
from frostline.model.attention import PagedContext
from frostline.runner.graphs import Graphs, graphs_for
from frostline.runner.logprobs import score_tokens
from frostline.runner.memory import plan_pages
from frostline.runner.rows import Rows, RowValues
from frostline.runner.sampling import choose
from frostline.runner.spans import spec_stage_span
from frostline.runner.transfer import Results
from frostline.speculative.iteration import Run, iterate
from frostline.speculative.pair import Pair, load_pair
from frostline.speculative.plan import Plan
from frostline.speculative.prompt import ScoredPrompt, score_prompt, token_logprobs
from frostline.speculative.scoring import Scorer
from frostline.speculative.step import DraftNodes, PrefillChunk, RunResult, Scrub, SeedResult, Step, StepResult
from frostline.types import GROUPS, Group


@dataclass(frozen=True, kw_only=True)
class _Seeds:
    """First tokens of the rows of one padded prefill batch; `last` says which of them ended their prompt.

    results: tokens, whether finite, and scores of the tokens where the plan asks for them.
    """

    chunks: tuple[PrefillChunk, ...]
    results: Results
    prompt: ScoredPrompt | None

    def read(self) -> list[SeedResult]:
        token_B, finite_B, *scores = self.results.read()
        entries = token_logprobs(scores) if scores else [None] * len(self.chunks)
        return [
            SeedResult(row=chunk.row, token=token, finite=finite, logprobs=entry)
            for chunk, token, finite, entry in zip(self.chunks, token_B, finite_B, entries, strict=True)
            if chunk.last or not finite
        ]


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A launched step: results on their way to `collect`. drafted: depth offered to each row of the run.

    run: tokens, counts, whether finite, the tokens' scores where the plan asks for them, and the drafted tokens and
    parents where nodes are recorded.
    """

    step: Step
    drafted: tuple[int, ...]
    seeds: tuple[_Seeds, ...]
    run: Results | None


class DeviceExecutor:
    """Runs steps on one device. record_nodes: also return every drafted tree, for the drafting oracle.

    `kv_pages` of the engine config bounds each group's pages; None sizes both pools from free memory.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        speculative: SpeculativeConfig,
        engine: EngineConfig,
        record_nodes: bool = False,
    ) -> None:
        if pair.assistant is None and speculative.num_steps:
            raise ConfigError("drafting needs an assistant; name one with draft=PATH or set num_steps=0")
        self.pair, self.spec, self._record = pair, pair.target.spec, record_nodes
        self.verify_width, self.page_size = speculative.verify_width, engine.page_size
        self.max_context = min(engine.max_model_len or self.spec.max_positions, self.spec.max_positions)
        if engine.max_model_len is not None and engine.max_model_len > self.spec.max_positions:
            raise ConfigError(
                f"max_model_len {engine.max_model_len} is above the model's {self.spec.max_positions} positions"
            )
        self.num_rows = engine.max_num_seqs + 1
        self.draft_position = self._draft_position(speculative.draft_position)
        dtype, device = pair.target.dtype, pair.target.device
        table_width = -(-(self.max_context + 2 * self.verify_width) // self.page_size)
        layouts = plan_pages(
            self.spec,
            table_width=table_width,
            margin=2 * self.verify_width,
            engine=engine,
            element_size=dtype.itemsize,
            device=device,
        )
        self._cache = KVCache.empty(layouts, page_size=self.page_size, dtype=dtype, device=device)
        # A group without layers still has page numbers, so many that they are never short: the engine need not know
        # which groups exist.
        most = self.num_rows * table_width + 1
        self.num_pages: Mapping[Group, int] = {
            group: layouts[group].num_pages if group in layouts else most for group in GROUPS
        }
        self.window = self.spec.window
        self._depths: dict[int, int] = {}
        self._graphs: Graphs | None = None
        if engine.capture_after is not None:
            self._graphs = graphs_for(device, engine.capture_after)
        for model in (pair.target, pair.assistant):
            if model is not None:
                model.requires_grad_(False)
        self._rows = Rows.empty(
            self.num_rows,
            hidden_size=self.spec.hidden_size,
            vocab_size=self.spec.vocab_size,
            table_width=table_width,
            groups=tuple(layouts),
            dtype=dtype,
            device=device,
        )

    @classmethod
    def load(
        cls,
        model: str,
        draft: str,
        *,
        speculative: SpeculativeConfig,
        engine: EngineConfig,
        device: str,
        dtype: str = "auto",
        dummy_weights: bool = False,
    ) -> DeviceExecutor:
        """Load a pair from folders, bundled names or the hub. draft "auto" without an assistant decodes plainly.

        dummy_weights: random weights of the configs' shapes, made on the device; the folders need only config.json.
        Raises ModelError, PairError or ConfigError.
        """
        pair = load_pair(model, draft, device=device, dtype=dtype, dummy_weights=dummy_weights)
        if pair.assistant is None:
            speculative = speculative.without_drafts()
        return cls(pair, speculative=speculative, engine=engine)

    @torch.inference_mode()
    def launch(self, step: Step) -> InFlight:
        """Run the step's device work in its order; nothing is read back here."""
        if step.scrub:
            self._scrub(step.scrub)
        if step.inits:
            self._rows.admit(
                [
                    RowValues(
                        row=init.row,
                        temperature=init.temperature,
                        top_k=init.top_k,
                        top_p=init.top_p,
                        min_p=init.min_p,
                        seed=init.seed,
                        depth=init.depth,
                        rules=init.rules,
                    )
                    for init in step.inits
                ]
            )
        for group in self._cache.pools:
            writes = [(write.row, write.start, write.pages) for write in step.tables if write.group == group]
            if writes:
                self._rows.write_table(group, writes)
        for copy in step.copies:
            if copy.group in self._cache.pools:
                self._cache.pools[copy.group].copy_page(copy.source, copy.destination, copy.rows)
        self._depths.update({init.row: init.depth for init in step.inits})
        device = self.pair.target.device.type
        seeds: tuple[_Seeds, ...] = ()
        if step.prefill:
            with spec_stage_span("prefill", device):
                seeds = tuple(self._prefill(chunks, step.plan) for chunks in alike(step.prefill))
        run = None
        if step.rows:
            with spec_stage_span("iterate", device):
                run = self._results(self._iterate(step.rows, step.plan, step.kv_bound))
        # Kept with the step: by the time it is read the row may have another owner.
        drafted = tuple(min(self._depths[row], step.plan.num_steps) for row in step.rows)
        return InFlight(step=step, drafted=drafted, seeds=seeds, run=run)

    @torch.inference_mode()
    def collect(self, flight: InFlight) -> StepResult:
        """Wait for the step and read it; nothing of the device side's state is read or written."""
        seeds = [seed for batch in flight.seeds for seed in batch.read()]
        prompts = [found for batch in flight.seeds if batch.prompt is not None for found in batch.prompt.read()]
        runs = [] if flight.run is None else self._read_run(flight, flight.run)
        return StepResult(seeds=tuple(seeds), runs=tuple(runs), prompts=tuple(prompts))

    def _iterate(self, rows: Sequence[int], plan: Plan, kv_bound: int) -> Run:
        """One iteration, of padding rows too where recordings want a rounder batch; these come last."""
        if self._graphs is None:
            return iterate(self.pair, self._cache, self._rows, self._rows.index(rows), plan, kv_bound)
        rows_B = self._rows.index([*rows, *[0] * (self._graphs.batch(len(rows)) - len(rows))])
        # A bound past a table's end reads its last page again, under the mask.
        bound = self._graphs.bound(kv_bound)
        row_state, cached = self._rows.tensors(plan.rules), self._cache.tensors()

        def function(rows_B: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            rows = self._rows.over(state[: len(row_state)], plan.rules)
            cache = self._cache.over(state[len(row_state) :])
            return iterate(self.pair, cache, rows, rows_B, plan, bound).tensors()

        return Run.of(self._graphs.run((len(rows_B), plan, bound), function, rows_B, (*row_state, *cached)))

    def _prefill(self, chunks: tuple[PrefillChunk, ...], plan: Plan) -> _Seeds:
        """One padded forward for chunks of similar length; the last row of each becomes its row's seed."""
        width = max(len(chunk.tokens) for chunk in chunks)
        pad = self.spec.pad_token_id
        padded = [token for c in chunks for token in (*c.tokens, *[pad] * (width - len(c.tokens)))]
        token_BQ = self._rows.index(padded).view(len(chunks), width)
        length_B = self._rows.index([len(chunk.tokens) for chunk in chunks])
        rows_B, start_B = self._rows.index([c.row for c in chunks]), self._rows.index([c.start for c in chunks])
        target = self.pair.target
        context = PagedContext(
            self._cache,
            self.spec,
            target.rotary,
            tables=self._rows.batch_tables(rows_B),
            base_B=start_B,
            width=width,
            kv_bound=max(chunk.start for chunk in chunks) + width,
            length_B=length_B,
        )
        prompt = None
        if chunks[0].prompt_logprobs is None:
            hidden_BD = target(token_BQ, context, last=length_B - 1).squeeze(1)
        else:
            hidden_BQD = target(token_BQ, context)
            hidden_BD = hidden_BQD[torch.arange(len(chunks), device=length_B.device), length_B - 1]
            prompt = score_prompt(target, hidden_BQD, chunks)
        end_B = start_B + length_B
        logits = target.logits(hidden_BD)
        token_B = choose(Scorer(self._rows, rows_B, plan)(logits, (end_B - 1).unsqueeze(1)))
        if any(chunk.bonus is not None for chunk in chunks):
            bonus_B = self._rows.index([-1 if chunk.bonus is None else chunk.bonus for chunk in chunks])
            token_B = torch.where(bonus_B < 0, token_B, bonus_B)
        self._rows.seed(rows_B, end_B, token_B, hidden_BD)
        if plan.rules.penalties:
            # What seems to follow a chunk inside a prompt is nobody's token, and a bonus was counted on admission.
            new_B1 = self._rows.index([chunk.last and chunk.bonus is None for chunk in chunks]).bool().unsqueeze(1)
            self._rows.rules.count(rows_B, token_B.unsqueeze(1), new_B1)
        scores = () if plan.logprobs < 0 else score_tokens(logits, token_B, plan.logprobs)
        results = Results(token_B, hidden_BD.isfinite().all(1), *scores)
        return _Seeds(chunks=chunks, results=results, prompt=prompt)

    def _results(self, run: Run) -> Results:
        nodes = (run.tree.token_BN, run.tree.parent_BN) if self._record else ()
        return Results(run.tokens_BK, run.count_B, run.finite_B, *(run.scores or ()), *nodes)

    def _read_run(self, flight: InFlight, run: Results) -> list[RunResult]:
        step = flight.step
        tokens, counts, finite, *rest = (values[: len(step.rows)] for values in run.read())
        scores, tree = (rest[:4], rest[4:]) if step.plan.logprobs >= 0 else ([], rest)
        nodes: list[DraftNodes | None] = [None] * len(step.rows)
        if tree:
            nodes = [
                DraftNodes(tokens=tuple(token), parents=tuple(parent)) for token, parent in zip(*tree, strict=True)
            ]
        return [
            RunResult(
                row=row,
                tokens=tuple(tokens[i][: counts[i]]),
                drafted=flight.drafted[i],
                finite=finite[i],
                nodes=node,
                logprobs=tuple(token_logprobs([column[i][: counts[i]] for column in scores])) if scores else None,
            )
            for i, (row, node) in enumerate(zip(step.rows, nodes, strict=True))
        ]

    def _scrub(self, scrubs: Sequence[Scrub]) -> None:
        for group, pool in self._cache.pools.items():
            pool.scrub(self._rows.index([page for scrub in scrubs for page in scrub.pages[group]]))
        self._rows.hidden.index_fill_(0, self._rows.index([scrub.row for scrub in scrubs]), 0)

    def _draft_position(self, wanted: DraftPosition) -> DraftPosition:
        assistant = self.pair.assistant
        if wanted != "auto" or assistant is None:
            return wanted
        return assistant.spec.draft_position or "auto"


def alike(chunks: tuple[PrefillChunk, ...]) -> list[tuple[PrefillChunk, ...]]:
    """Chunks grouped so that padding to a group's longest at most doubles a chunk; scored ones among themselves."""
    groups: list[list[PrefillChunk]] = []
    for chunk in sorted(chunks, key=lambda c: (c.prompt_logprobs is None, len(c.tokens)), reverse=True):
        alike = groups and (chunk.prompt_logprobs is None) == (groups[-1][0].prompt_logprobs is None)
        if alike and 2 * len(chunk.tokens) >= len(groups[-1][0].tokens):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return [tuple(group) for group in groups]
