"""A byte-level BPE tokenizer made in the test: every byte has a token, a few strings have one of their own."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast

from frostline.text.tokenizer import Tokenizer

SPECIALS = ("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>")
PAD, EOS, BOS, TURN, END_OF_TURN = range(5)

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% if enable_thinking %}<|think|>{% endif %}{% endif %}"
)

_TEXT = (
    "the answer is <END> of the line\n\nQuestion: ",
    "한국어 문장 日本語の文 😀👩‍👩‍👧 ",
    "stop STOP stopping ",
    "é e\u0301 n\u0303 ",
)


def inner(*, bos: bool = True, template: bool = True) -> PreTrainedTokenizerFast:
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[AddedToken(token, special=True) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator([text * 3 for text in _TEXT], trainer)
    names = {"eos_token": "<eos>", "pad_token": "<pad>"} | ({"bos_token": "<bos>"} if bos else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust, **names)
    tokenizer.chat_template = TEMPLATE if template else None
    return tokenizer


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(inner())


def byte_ids(text: str) -> list[int]:
    """One token per byte: the most unusual way to spell a text."""
    rust = byte_level().inner.backend_tokenizer
    alphabet = {token: rust.token_to_id(token) for token in pre_tokenizers.ByteLevel.alphabet()}
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
    return [alphabet[character] for character in spelt]
