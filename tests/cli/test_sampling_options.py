"""Sampling options of the command line and the parameters that they become."""

from __future__ import annotations

import pytest

from frostline import ConfigError, SamplingParams
from frostline.cli.options import SamplingOptions
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLLM


def test_every_option_reaches_the_parameters() -> None:
    options = SamplingOptions(
        min_tokens=2,
        frequency_penalty=0.5,
        presence_penalty=-1.0,
        repetition_penalty=1.2,
        logit_bias=["106=-2.5", "7=3"],
        allowed_token_ids=[7, 106],
    )
    assert options.params() == SamplingParams(
        temperature=0.0,
        max_tokens=128,
        min_tokens=2,
        frequency_penalty=0.5,
        presence_penalty=-1.0,
        repetition_penalty=1.2,
        logit_bias={106: -2.5, 7: 3.0},
        allowed_token_ids=(7, 106),
    )
    assert SamplingOptions().params() == SamplingParams(temperature=0.0, max_tokens=128)


@pytest.mark.parametrize("given", ["106", "106=", "=1", "a=1", "106=b"])
def test_a_bias_that_is_none_is_refused(given: str, run: Run, engines: list[FakeLLM]) -> None:
    with pytest.raises(ConfigError, match="takes a token id and a number"):
        SamplingOptions(logit_bias=[given]).params()
    result = run("generate", "--prompt", "Hi", "--logit-bias", given)
    assert result.exit_code != 0 and "--logit-bias takes a token id" in result.stderr and not engines
