"""What torch's helper threads cost, and that they can be let go."""

from __future__ import annotations

from pathlib import Path

import torch

from frostline.runner.threads import team_release


def helpers() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_a_threads_openmp_team_goes_and_comes_back() -> None:
    threads, square = torch.get_num_threads(), torch.ones(512, 512)
    torch.set_num_threads(2)
    try:
        expected = (square.relu() @ square).sum()
        with_team = helpers()
        team_release()()
        assert helpers() < with_team
        assert (square.relu() @ square).sum() == expected and helpers() == with_team
    finally:
        team_release()()
        torch.set_num_threads(threads)
