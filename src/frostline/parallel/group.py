"""The tensor-parallel group that a sharded layer belongs to. Knows nothing of layers or of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from frostline.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ParallelGroup:
    """Rank and size of a tensor-parallel group; one process for now, and a larger size is refused, not ignored."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size != 1 or self.rank != 0:
            raise ConfigError(f"tensor parallelism over {self.size} processes is not available; use one process")

    def share(self, total: int, what: str) -> int:
        """This rank's share of a dimension. Raises ConfigError when it does not divide evenly."""
        if total % self.size:
            raise ConfigError(f"{what} {total} cannot be split over {self.size} ranks")
        return total // self.size


SOLO = ParallelGroup()
