"""Tokenizer, chat template and generation defaults of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline.errors import ModelError, RequestError
from frostline.text.generation import GenerationDefaults
from frostline.text.tokenizer import Tokenizer
from frostline.types import SamplingParams
from tests.text.byte_level import BOS, EOS, byte_level, inner

HELLO = [{"role": "user", "content": "hello"}]


def test_begin_of_text_is_added_once() -> None:
    tokenizer = byte_level()
    plain = tokenizer.encode("the line")
    assert plain[0] == BOS and plain.count(BOS) == 1
    assert tokenizer.encode("<bos>the line") == plain
    assert tokenizer.encode("the line", add_bos=False) == plain[1:]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS, EOS)


def test_begin_of_text_of_the_model_serves_a_tokenizer_without_one() -> None:
    assert Tokenizer(inner(bos=False)).bos_token_id is None
    assert Tokenizer(inner(bos=False), bos_token_id=BOS).encode("x")[0] == BOS
    assert Tokenizer(inner(bos=False)).encode("x") == byte_level().encode("x", add_bos=False)


def test_chat_template_with_variables() -> None:
    tokenizer = byte_level()
    text = tokenizer.render_chat(HELLO)
    assert text == "<bos><|turn>user\nhello<turn|>\n<|turn>model\n"
    assert tokenizer.encode(text, add_bos=False).count(BOS) == 1
    assert tokenizer.render_chat(HELLO, enable_thinking=True).endswith("<|think|>")
    assert tokenizer.render_chat(HELLO, add_generation_prompt=False).endswith("<turn|>\n")


def test_chat_errors_name_the_remedy() -> None:
    with pytest.raises(RequestError, match="at least one message"):
        byte_level().render_chat([])
    with pytest.raises(RequestError, match="unknown role robot"):
        byte_level().render_chat([{"role": "robot", "content": "x"}])
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer(inner(template=False)).render_chat(HELLO)


def test_load_from_a_folder(tmp_path: Path) -> None:
    inner().save_pretrained(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("the answer 한") == byte_level().encode("the answer 한")
    assert loaded.render_chat(HELLO) == byte_level().render_chat(HELLO)


def test_load_errors_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no folder") as missing:
        Tokenizer.load(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="has no tokenizer") as bare:
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{]")
    with pytest.raises(ModelError, match="cannot be read") as broken:
        Tokenizer.load(tmp_path)
    for error in (missing, bare, broken):
        assert "\n" not in str(error.value)


def test_generation_config(tmp_path: Path) -> None:
    assert GenerationDefaults.load(tmp_path) == GenerationDefaults(eos_token_ids=(), sampling=SamplingParams())
    file = tmp_path / "generation_config.json"
    released = {"eos_token_id": [1, 106, 50], "do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95}
    file.write_text(json.dumps(released))
    loaded = GenerationDefaults.load(tmp_path)
    assert loaded.eos_token_ids == (1, 106, 50)
    assert loaded.sampling == SamplingParams(temperature=1.0, top_k=64, top_p=0.95)
    file.write_text(json.dumps({"eos_token_id": 1, "do_sample": False, "temperature": 0.7, "max_new_tokens": 9}))
    loaded = GenerationDefaults.load(tmp_path)
    assert loaded.eos_token_ids == (1,)
    assert loaded.sampling == SamplingParams(temperature=0.0, max_tokens=9)
    assert loaded.suppress_token_ids == ()
    # As the released 12B has it; a repetition penalty holds for greedy text too.
    more = {"suppress_tokens": [258883, 258882], "repetition_penalty": 1.1, "do_sample": False}
    file.write_text(json.dumps(more))
    loaded = GenerationDefaults.load(tmp_path)
    assert loaded.suppress_token_ids == (258883, 258882)
    assert loaded.sampling == SamplingParams(temperature=0.0, repetition_penalty=1.1)


@pytest.mark.parametrize("content", ["{", "[]", '{"top_p": 0}', '{"temperature": "hot"}', '{"eos_token_id": "x"}'])
def test_generation_config_that_cannot_be_used(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        GenerationDefaults.load(tmp_path)
