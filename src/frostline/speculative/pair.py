"""A target and its assistant on one device, as the iteration uses them."""

from __future__ import annotations

from dataclasses import dataclass

from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Pair:
    """assistant None: plain decoding only."""

    target: Decoder
    assistant: Assistant | None
