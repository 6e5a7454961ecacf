"""The byte-level tokenizer and the chat template, trained on a small made-up text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frostline.errors import ConfigError
from frostline.train.documents import Document, Turn
from frostline.train.synthetic import TOOLS, tool_documents, tool_value
from frostline.train.tokenizer import (
    EOS_IDS,
    SPECIAL_IDS,
    VOCAB_SIZE,
    load_tokenizer,
    reserved_tokens,
    save_tokenizer,
    train_tokenizer,
)


def _made_up_texts() -> list[str]:
    rng = random.Random(0)
    parts = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
    words = ["".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(6000)]
    return [" ".join(rng.choices(words, k=40)) + "." for _ in range(2000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(_made_up_texts()), path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def auto(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def test_special_tokens_keep_gemma_4_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    for text, number in SPECIAL_IDS.items():
        assert tokenizer.token_to_id(text) == number
        assert tokenizer.encode(f"a{text}b", add_special_tokens=False).ids[1] == number
    assert [tokenizer.id_to_token(i) for i in range(128)] == reserved_tokens()
    assert {SPECIAL_IDS[t] for t in ("<eos>", "<turn|>", "<|tool_response>")} == set(EOS_IDS)
    assert all(len(str(tokenizer.id_to_token(i))) == 1 for i in range(128, 384))  # the 256 byte symbols


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    if any(special in text for special in reserved_tokens()):
        return
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize("text", ["世界, こんにちは", "🎉👨‍👩‍👧 naïve", " two  spaces\n\n\ttab ", "it's 3.14\r\n", ""])
def test_awkward_text_comes_back(tokenizer: Tokenizer, auto: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert auto.decode(auto(text)["input_ids"]) == text


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("1234 56", add_special_tokens=False).tokens == ["1", "2", "3", "4", "Ġ", "5", "6"]


def test_transformers_loads_it(auto: Any) -> None:
    assert len(auto) == VOCAB_SIZE
    assert (auto.pad_token_id, auto.eos_token_id, auto.bos_token_id, auto.unk_token_id) == (0, 1, 2, 3)
    assert auto.padding_side == "left"
    assert auto("bada")["input_ids"][0] != 2  # the template writes <bos>, not the tokenizer


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="more varied text"):
        train_tokenizer(["one short sentence"])


def _template(auto: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(auto.apply_chat_template(messages, tokenize=False, **options))


def test_template_writes_what_training_documents_hold(auto: Any) -> None:
    document = Document(
        kind="chat",
        turns=(
            Turn("system", "Be kind."),
            Turn("user", "Hi"),
            Turn("model", "Hello!"),
            Turn("user", "Bye"),
            Turn("model", "Bye!"),
        ),
    )
    roles = {"system": "system", "user": "user", "model": "assistant"}
    messages = [{"role": roles[t.role], "content": t.text} for t in document.turns]
    assert _template(auto, messages) + "<eos>" == document.render()
    assert _template(auto, messages[:-1], add_generation_prompt=True) == document.prompt()
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert _template(auto, parts, add_generation_prompt=True) == "<bos><|turn>user\nHi<turn|>\n<|turn>model\n"


def test_template_switches_thinking_on_and_drops_past_thoughts(auto: Any) -> None:
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "<|channel>thought\none and one<channel|>2"},
        {"role": "user", "content": "Sure?"},
    ]
    written = _template(auto, messages, add_generation_prompt=True, enable_thinking=True)
    assert written == (
        "<bos><|turn>system\n<|think|><turn|>\n<|turn>user\n1 + 1?<turn|>\n<|turn>model\n2<turn|>\n"
        "<|turn>user\nSure?<turn|>\n<|turn>model\n"
    )


def test_template_writes_tools_calls_and_responses(auto: Any) -> None:
    document = next(d for d in tool_documents(40, seed=1) if d.turns[0].text.count("<|tool>") == 1)
    system, question, reply = (t.text for t in document.turns)
    tool = next(t for t in TOOLS if f"declaration:{t.name}{{" in system)
    properties = {name: {"type": kind} for name, kind in tool.parameters.items()}
    declared = {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": {"type": "object", "properties": properties},
        },
    }
    plain_system = system.partition("<|tool>")[0]
    opening = [{"role": "system", "content": plain_system}, {"role": "user", "content": question}]
    assert _template(auto, opening, tools=[declared], add_generation_prompt=True) == document.prompt()
    arguments = {"city": "Rome", "n": 42, "on": True, "none": None, "list": [1, "a"]}
    call = {"type": "function", "function": {"name": tool.name, "arguments": arguments}}
    called = [
        *opening,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": tool.name, "content": {"status": "ok"}},
    ]
    written = _template(auto, called, tools=[declared], add_generation_prompt=True)
    assert written == (
        f"{document.prompt()}<|tool_call>call:{tool.name}"
        f'{{city:<|"|>Rome<|"|>,n:42,on:true,none:null,list:[1,<|"|>a<|"|>]}}'
        f'<tool_call|><|tool_response>response:{tool.name}{{status:<|"|>ok<|"|>}}<tool_response|>'
    )
    done = _template(auto, [*called, {"role": "assistant", "content": "Done."}], tools=[declared])
    assert done == written + "Done.<turn|>\n"
    assert reply.startswith(f"<|tool_call>call:{tool.name}{{")
    assert tool_value({"status": "ok"}) == '{status:<|"|>ok<|"|>}'
