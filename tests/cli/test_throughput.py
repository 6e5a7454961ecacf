from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from frostline.cli import plot, traffic
from frostline.cli.traffic import Trace, percentiles, serve
from frostline.cli.workload import Lengths, Work, arrivals, make_prompts, make_work
from frostline.config import SpeculativeConfig
from frostline.errors import ConfigError
from frostline.types import SamplingParams
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLLM

SMALL = ("--num-prompts", "5", "--output-len", "9", "--rounds", "1", "--concurrency", "1,3")


def cases_of(run: Run, *args: str) -> list[dict[str, Any]]:
    result = run("bench", "throughput", *SMALL, *args, "--json")
    assert result.exit_code == 0, result.stderr
    return list(json.loads(result.stdout)["cases"])


def test_every_concurrency_mode_and_schedule_is_measured(run: Run, engines: list[FakeLLM]) -> None:
    cases = cases_of(run, "--rounds", "3")
    assert [(case["concurrency"], case["mode"], case["schedule"]) for case in cases] == [
        (clients, mode, schedule)
        for clients in (1, 3)
        for mode in ("plain", "chain", "tree")
        for schedule in ("sync", "overlap")
    ]
    for case in cases:
        assert (case["requests"], case["tokens"], len(case["seconds"])) == (5, 45, 3)
        assert case["to_one_by_one"] is None and case["same_tokens_as_plain"] == 5
        assert case["schedule"] != "sync" or case["to_sync"] == 1.0
        assert case["mode"] != "plain" or case["to_plain"] == 1.0
        assert ("accept_length" in case) == (case["mode"] != "plain")
        for name in ("ttft_ms", "inter_token_ms", "end_to_end_ms"):
            assert case[name]["p50"] <= case[name]["p90"] <= case[name]["p99"]
    (engine,) = engines
    # 12 cases, each once to warm up and three times measured, with as many clients as were asked for and no more.
    assert sorted(live.most_open for live in engine.lives) == [1] * 24 + [3] * 24
    assert len(engine.added) == 48 * 5


def test_the_table_and_the_picture(run: Run, engines: list[FakeLLM], tmp_path: Path) -> None:
    result = run("bench", "throughput", *SMALL, "--plot", str(tmp_path / "a.png"))
    assert result.exit_code == 0 and "first ms" in result.stdout and "5/5" in result.stdout
    assert "round 1/1: tree overlap, 3 at once" in result.stderr
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_picture_shows_the_baselines_too(run: Run, engines: list[FakeLLM], tmp_path: Path) -> None:
    rows = cases_of(run, "--modes", "plain")
    rows += [{"mode": "transformers padded", "schedule": None, "concurrency": 8, "tokens_per_s": 3.0}]
    plot.draw(rows, tmp_path / "b.png", title="t")
    assert (tmp_path / "b.png").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="name another"):
        plot.draw(rows, tmp_path / "no" / "c.png", title="t")


def test_the_timeline_is_of_the_last_case(run: Run, engines: list[FakeLLM], tmp_path: Path) -> None:
    cases_of(run, "--modes", "chain", "--timeline", str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "tick" in {event["name"] for event in events}


def test_requests_that_arrive_by_themselves(run: Run, engines: list[FakeLLM]) -> None:
    cases = cases_of(run, "--request-rate", "1000", "--modes", "plain", "--schedule", "overlap")
    assert [case["requests"] for case in cases] == [5, 5]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--concurrency", "0"), "--concurrency must be positive numbers"),
        (("--schedule", "async"), "--schedule must be sync, overlap or both"),
        (("--modes", "chains"), "unknown mode 'chains'"),
        (("--input-len", "9:3"), "--input-len must be at least 1 and rise"),
        (("--input-len", "x"), "--input-len must be a number of tokens such as 128"),
        (("--output-len", "0"), "--output-len must be at least 1"),
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--request-rate", "0"), "--request-rate must be requests per second above 0"),
        (("--request-rate", "3", "--against", "transformers"), "transformers has no queue"),
        (("--temperature", "1", "--against", "transformers"), "leave --temperature at 0"),
        (("--stop", "x"), "leave --stop and --max-tokens out"),
        (("--max-tokens", "7"), "leave --stop and --max-tokens out"),
        (("--plot", "x.svg"), "must name a .png file"),
        (("--plot", "no/such/folder/x.png"), "in a folder that exists"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_loading(
    run: Run, engines: list[FakeLLM], args: tuple[str, ...], message: str
) -> None:
    result = run("bench", "throughput", *args)
    assert result.exit_code == 2 and message in result.stderr
    assert engines == []


def test_prompts_and_lengths_cannot_both_be_given(run: Run, engines: list[FakeLLM], tmp_path: Path) -> None:
    (tmp_path / "p").write_text("one\ntwo\n")
    refused = run("bench", "throughput", "--input-len", "3", "--prompt-file", str(tmp_path / "p"))
    assert refused.exit_code == 2 and "give one of them" in refused.stderr
    cases_of(run, "--prompt-file", str(tmp_path / "p"), "--modes", "plain", "--schedule", "sync")
    assert engines[-1].added[:5] == ["one", "two", "one", "two", "one"]


def test_drawn_lengths_are_of_text_and_the_same_every_time(engines: list[FakeLLM]) -> None:
    lengths = Lengths.parse("2:40", "--input-len")
    encode = FakeLLM(SpeculativeConfig()).tokenizer.encode
    prompts, again = (make_prompts(None, lengths, 30, encode=encode, seed=1) for _ in range(2))
    assert prompts == again
    sizes = [len(prompt) for prompt in prompts]
    assert min(sizes) >= 2 and max(sizes) <= 40 and len(set(sizes)) > 10
    assert {chr(int(token)) for prompt in prompts for token in prompt} <= set("Once1 +")
    assert all(isinstance(token, int) for token in make_prompts(None, lengths, 1, encode=None, seed=1)[0])


def test_requests_have_seeds_of_their_own_and_drawn_lengths() -> None:
    work = make_work(["a"] * 9, SamplingParams(seed=5), Lengths(low=3, high=9), seed=1)
    assert [one.params.seed for one in work] == list(range(5, 14))
    assert {3 <= (one.params.max_tokens or 0) <= 9 for one in work} == {True}


def test_arrivals_are_poisson_with_a_fixed_seed() -> None:
    times = arrivals(4000, 20.0, seed=1)
    assert times == arrivals(4000, 20.0, seed=1) != arrivals(4000, 20.0, seed=2)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    # Exponential gaps: the mean is 1 / rate and so is the standard deviation.
    assert mean == pytest.approx(0.05, rel=0.06)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.06)


def test_percentiles_are_linear_between_neighbours() -> None:
    values = [n / 1000 for n in range(101)]
    random.Random(1).shuffle(values)
    assert percentiles(values) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "mean": 50.0}
    assert percentiles([0.001, 0.002])["p50"] == 1.5 and percentiles([]) == {}


def test_a_run_of_tokens_shares_the_time_since_the_last() -> None:
    trace = Trace(sent=1.0)
    for tokens, now in ((1, 2.0), (3, 2.6), (0, 2.7), (1, 3.0)):
        trace.receive(tokens, now)
    assert (trace.first, trace.last) == (2.0, 3.0)
    assert trace.gaps == pytest.approx([0.2, 0.2, 0.2, 0.3])


def test_an_open_loop_waits_for_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by a millisecond a look, and by what is slept: latencies count from the arrival on."""
    now = [100.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr(traffic.time, "perf_counter", clock)
    monkeypatch.setattr(traffic.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    llm = FakeLLM(SpeculativeConfig())
    work = [Work(prompt="x", params=SamplingParams(max_tokens=4)) for _ in range(3)]
    served = serve(llm, work, concurrency=1, arrivals=[0.0, 0.001, 9.0])
    assert [round(trace.sent - 100.001, 6) for trace in served.traces] == [0.0, 0.001, 9.0]
    assert served.traces[1].first > served.traces[0].last, "the second waited for the first"
    assert served.traces[2].first - served.traces[2].sent < 0.02
    assert served.seconds > 9 and [len(tokens) for tokens in served.tokens] == [4, 4, 4]
