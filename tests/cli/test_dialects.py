"""Every spelling of speculation means one thing, and what cannot be meant is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.cli.dialects import Speculation, SpeculationArgs, resolve_speculation
from frostline.config import SpeculativeConfig, tree_capacity
from frostline.errors import ConfigError


def resolve(**values: object) -> Speculation:
    return resolve_speculation(SpeculationArgs(**values))  # type: ignore[arg-type]


def test_nothing_given_is_a_chain_of_four_with_the_assistant_beside_the_target() -> None:
    meaning = resolve()
    assert (meaning.draft, meaning.explicit, meaning.notices) == ("auto", False, ())
    assert (meaning.config.num_steps, meaning.config.topk, meaning.config.verify_width) == (4, 1, 5)


def test_three_spellings_mean_the_same() -> None:
    ours = resolve(draft="D", num_steps=3, topk=2, num_draft_tokens=8)
    sglang = resolve(
        sglang_algorithm="FROZEN_KV_MTP",
        sglang_draft_model_path="D",
        sglang_num_steps=3,
        sglang_eagle_topk=2,
        sglang_num_draft_tokens=8,
    )
    vllm = resolve(
        vllm_config=json.dumps({"method": "mtp", "model": "D", "num_speculative_tokens": 3}), topk=2, num_draft_tokens=8
    )
    assert ours == sglang == vllm


@pytest.mark.parametrize("name", ["NEXTN", "EAGLE", "eagle", "nextn"])
def test_nextn_and_eagle_are_promoted_and_said_once(name: str) -> None:
    meaning = resolve(sglang_algorithm=name, sglang_draft_model_path="D", sglang_num_steps=3)
    assert meaning.config == SpeculativeConfig(num_steps=3)
    assert len(meaning.notices) == 1
    assert name in meaning.notices[0] and "FROZEN_KV_MTP" in meaning.notices[0]


@pytest.mark.parametrize(
    ("given_config", "notices"),
    [
        ({"model": "D", "num_speculative_tokens": 4}, 0),
        ({"method": "mtp", "model": "D", "num_speculative_tokens": 4}, 0),
        ({"method": "gemma4_mtp", "model": "D", "num_speculative_tokens": 4}, 0),
        ({"method": "eagle", "model": "D", "num_speculative_tokens": 4}, 1),
        ({"method": "draft_model", "model": "D", "num_speculative_tokens": 4}, 1),
    ],
)
def test_reported_27_an_assistant_needs_no_method_and_is_never_a_generic_draft_model(
    given_config: dict[str, object], notices: int
) -> None:
    meaning = resolve(vllm_config=json.dumps(given_config))
    assert (meaning.draft, meaning.config) == ("D", SpeculativeConfig(num_steps=4))
    assert len(meaning.notices) == notices


@pytest.mark.parametrize("name", ["EAGLE3", "eagle3", "NGRAM", "STANDALONE", "MEDUSA"])
def test_other_algorithms_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"--speculative-algorithm {name} is refused: .*; use FROZEN_KV_MTP"):
        resolve(sglang_algorithm=name, sglang_draft_model_path="D")


def test_eagle3_says_why() -> None:
    with pytest.raises(ConfigError, match="several target layers"):
        resolve(vllm_config='{"method": "eagle3", "model": "D"}')


def test_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="--speculative-algorithm LOOKAHEAD is not known"):
        resolve(sglang_algorithm="LOOKAHEAD")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"num_steps": 3, "sglang_num_steps": 4}, ("--num-steps 3", "--speculative-num-steps 4")),
        ({"topk": 1, "sglang_eagle_topk": 2}, ("--topk 1", "--speculative-eagle-topk 2")),
        ({"draft": "A", "sglang_draft_model_path": "B"}, ("--draft A", "--speculative-draft-model-path B")),
        (
            {"sglang_num_steps": 3, "vllm_config": '{"num_speculative_tokens": 2}'},
            ("--speculative-num-steps 3", "--speculative-config num_speculative_tokens 2"),
        ),
        ({"sglang_algorithm": "NONE", "num_steps": 3}, ("--speculative-algorithm NONE", "--num-steps 3")),
        (
            {"sglang_algorithm": "NONE", "sglang_draft_model_path": "D"},
            ("--speculative-algorithm NONE", "--speculative-draft-model-path D"),
        ),
        ({"draft": "none", "sglang_algorithm": "NEXTN"}, ("--draft none", "--speculative-algorithm FROZEN_KV_MTP")),
        ({"draft": "none", "topk": 2}, ("--draft none", "--topk 2")),
    ],
)
def test_contradictions_name_both_spellings(values: dict[str, object], names: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**values)
    assert all(name in str(caught.value) for name in names)


def test_the_same_value_twice_is_no_contradiction() -> None:
    assert resolve(num_steps=3, sglang_num_steps=3).config.num_steps == 3


@pytest.mark.parametrize("values", [{"draft": "none"}, {"sglang_algorithm": "NONE"}, {"draft": "none", "num_steps": 0}])
def test_plain_decoding(values: dict[str, object]) -> None:
    meaning = resolve(**values)
    assert (meaning.draft, meaning.config.num_steps, meaning.config.verify_width) == ("none", 0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"method": "mtp", "draft_tensor_parallel_size": 2, "quantization": "x"}',
            "draft_tensor_parallel_size, quant",
        ),
        ("{method: mtp}", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"num_speculative_tokens": "4"}', "num_speculative_tokens must be a whole number"),
        ('{"num_speculative_tokens": true}', "num_speculative_tokens must be a whole number"),
        ('{"model": 3}', "model must be a string"),
    ],
)
def test_vllm_json_is_checked(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(vllm_config=text)


def test_reported_8_draft_tokens_that_do_not_fit_the_steps_are_refused_at_start_with_the_rule() -> None:
    with pytest.raises(ConfigError, match=r"num_draft_tokens must be num_steps \+ 1 = 3, got 6"):
        resolve(sglang_num_steps=2, sglang_eagle_topk=1, sglang_num_draft_tokens=6)
    with pytest.raises(ConfigError, match=r"at least num_steps \+ 1 = 5"):
        resolve(num_steps=4, topk=2, num_draft_tokens=4)
    with pytest.raises(ConfigError, match="at most 7 nodes"):
        resolve(num_steps=2, topk=2, num_draft_tokens=8)


def test_reported_8_what_was_not_given_is_derived() -> None:
    assert resolve(num_draft_tokens=6).config.num_steps == 5
    assert resolve(sglang_num_steps=2).config.verify_width == 3
    assert resolve(topk=2, num_draft_tokens=3).config.num_steps == 2
    assert resolve(topk=3, num_draft_tokens=20).config.num_steps == 4


@pytest.mark.parametrize("values", [{"num_steps": -1}, {"num_steps": 9}, {"topk": 0}, {"num_draft_tokens": 0}])
def test_sizes_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"must be|num_draft_tokens"):
        resolve(**values)


maybe = st.none() | st.integers(-2, 70)


@given(num_steps=maybe, topk=maybe, num_draft_tokens=maybe)
def test_a_config_is_possible_or_refused(num_steps: int | None, topk: int | None, num_draft_tokens: int | None) -> None:
    try:
        config = SpeculativeConfig.derive(num_steps=num_steps, topk=topk, num_draft_tokens=num_draft_tokens)
    except ConfigError:
        return
    assert config.num_steps + 1 <= config.verify_width <= tree_capacity(config.num_steps, config.topk) <= 457
    assert config.topk > 1 or config.verify_width == config.num_steps + 1
    for given_value, value in (
        (num_steps, config.num_steps),
        (topk, config.topk),
        (num_draft_tokens, config.verify_width),
    ):
        assert given_value is None or given_value == value
