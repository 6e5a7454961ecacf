"""A byte-level BPE tokenizer of 4,096 tokens with Gemma 4's special tokens at Gemma 4's ids.

Ids 0 to 127 are special or unused, 128 to 383 the 256 bytes, the rest merges. Every byte has a symbol and nothing is
normalised, so any text comes back exactly; digits never merge. Knows nothing of where the training text comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from frostline.errors import ConfigError
from frostline.train.template import CHAT_TEMPLATE

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB_SIZE = 4096
RESERVED = 128
EOS_IDS = (1, 106, 50)
SPECIAL_IDS = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
}
# Contractions, words, single digits, punctuation, white space; a word or punctuation takes the space before it.
PIECES = r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GENERATION_DEFAULTS = {
    "bos_token_id": 2,
    "do_sample": True,
    "eos_token_id": list(EOS_IDS),
    "pad_token_id": 0,
    "temperature": 1.0,
    "top_k": 64,
    "top_p": 0.95,
}


def reserved_tokens() -> list[str]:
    """The texts of ids 0 to 127, in order."""
    names = {number: text for text, number in SPECIAL_IDS.items()}
    return [names.get(number, f"<unused{number}>") for number in range(RESERVED)]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train on `texts` (content only, without special tokens).

    Raises ConfigError when the texts are too few or too alike to give every merge.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=reserved_tokens(),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=16,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ConfigError(
            f"the training text gives {tokenizer.get_vocab_size()} tokens, not {VOCAB_SIZE}: train on more varied text"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "additional_special_tokens": [text for text, number in SPECIAL_IDS.items() if number > 3],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION_DEFAULTS, indent=2) + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of `folder`. Raises ConfigError when there is none."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"no tokenizer.json in {folder}: train one with `frostline train tiny` first")
    return Tokenizer.from_file(str(path))
