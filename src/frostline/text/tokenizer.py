"""A checkpoint's own tokenizer and chat template, through transformers, which is imported on first load.

Knows text and token ids; nothing of requests. The begin-of-text token is added here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frostline.errors import ModelError, RequestError
from frostline.model.resolve import resolve_model

Message = Mapping[str, Any]

_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


class Tokenizer:
    """Wraps a transformers fast tokenizer. `decode` makes it the TokenDecoder of the incremental detokenizer."""

    def __init__(self, inner: Any, *, bos_token_id: int | None = None) -> None:
        """inner: a transformers tokenizer. bos_token_id: the model's own, for a tokenizer that names none."""
        self.inner = inner
        own = inner.bos_token_id
        self.bos_token_id: int | None = bos_token_id if own is None else int(own)
        self.eos_token_id: int | None = None if inner.eos_token_id is None else int(inner.eos_token_id)
        # The Rust tokenizer itself: the wrapper's decode costs several times more, and this runs for every token.
        self._rust = getattr(inner, "backend_tokenizer", None)

    @classmethod
    def load(cls, model: str | Path, *, bos_token_id: int | None = None) -> Tokenizer:
        """From a local folder, a bundled model or a hub id. Raises ModelError for one that is missing or unreadable."""
        folder = resolve_model(model, weights=False)
        if not cls.is_in(folder):
            raise ModelError(f"{folder} has no tokenizer ({', '.join(_FILES)}); copy it there or name its folder")
        from transformers import AutoTokenizer

        try:
            inner = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelError(f"the tokenizer in {folder} cannot be read: {reason}; download it again") from error
        return cls(inner, bos_token_id=bos_token_id)

    @staticmethod
    def is_in(folder: Path) -> bool:
        return any((folder / name).is_file() for name in _FILES)

    @property
    def vocab_size(self) -> int:
        return len(self.inner)

    def encode(self, text: str, *, add_bos: bool = True) -> tuple[int, ...]:
        """Token ids, special tokens in the text included. The begin-of-text id is put first unless it stands there."""
        ids = tuple(int(i) for i in self.inner.encode(text, add_special_tokens=False))
        if add_bos and self.bos_token_id is not None and ids[:1] != (self.bos_token_id,):
            return (self.bos_token_id, *ids)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; broken UTF-8 becomes U+FFFD and spaces are left as they are."""
        if self._rust is not None:
            return str(self._rust.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = self.inner.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        return str(text)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Messages in the checkpoint's own chat template; `variables` reach the template (enable_thinking, ...).

        The template writes the begin-of-text token itself, so encode the result with add_bos=False.
        Raises RequestError when there is no template, no message, or the template refuses the messages.
        """
        if not messages:
            raise RequestError("a chat needs at least one message, such as {'role': 'user', 'content': 'Hello'}")
        if not getattr(self.inner, "chat_template", None):
            raise RequestError("this model's tokenizer has no chat template; use generate() with a plain prompt")
        from jinja2.exceptions import TemplateError

        try:
            text = self.inner.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except (TemplateError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(f"the chat template refuses the messages: {error}; check roles and contents") from error
        return str(text)
