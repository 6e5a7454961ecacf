"""What the benches share: which cases are compared, how often, and how the figures are told.

Knows options and figures; nothing of engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from frostline.cli import output
from frostline.cli.measure import modes_of, read_modes
from frostline.cli.options import ModelOptions, SamplingOptions
from frostline.config import SpeculativeConfig
from frostline.errors import ConfigError

Against = Literal["transformers"]
_PANEL = "Comparison"


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Cases take turns for some rounds in one run, so that what else the machine does meets all of them alike."""

    modes: Annotated[
        str | None,
        typer.Option("--modes", help="Some of plain,chain,tree; all when left out.", rich_help_panel=_PANEL),
    ] = None
    against: Annotated[
        Against | None,
        typer.Option(
            "--against",
            help="Also run transformers' generate on the same requests, in padded batches; throughput also one by one.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    rounds: Annotated[
        int, typer.Option("--rounds", help="Measured rounds; the median counts.", rich_help_panel=_PANEL)
    ] = 3
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.", rich_help_panel=_PANEL)] = False

    def configs(self, config: SpeculativeConfig) -> dict[str, SpeculativeConfig]:
        """By mode; raises ConfigError for modes that there are not."""
        return modes_of(read_modes(self.modes, drafting=config.num_steps > 0), config)

    def check(self, sampling: SamplingOptions) -> None:
        """Raises ConfigError for what would make the cases do different work, or none."""
        if self.against is not None and sampling.temperature > 0:
            raise ConfigError("--against transformers compares greedy decoding; leave --temperature at 0")
        if self.rounds < 1:
            raise ConfigError(f"--rounds must be at least 1, got {self.rounds}")

    def write(
        self,
        command: str,
        model: ModelOptions,
        sampling: SamplingOptions,
        rows: Sequence[dict[str, Any]],
        **load: object,
    ) -> None:
        """The figures as JSON, with all that they depend on. load: what was asked of the engine."""
        output.write_json(
            {
                "command": command,
                "model": model.model,
                "environment": output.environment(model.device),
                "dtype": model.dtype,
                **load,
                "temperature": sampling.temperature,
                "rounds": self.rounds,
                "cases": rows,
            }
        )


def ratio(value: float | None) -> str:
    """As a table's cell; "-" for what was not measured."""
    return "-" if value is None else f"{value:.2f}"


def same(row: dict[str, Any]) -> str:
    """Requests with plain decoding's tokens, of all."""
    return "-" if row["same_tokens_as_plain"] is None else f"{row['same_tokens_as_plain']}/{row['requests']}"
