"""What a request's options do to its logits, as plain values: penalties, biases, and from where on a token is allowed.

They are built once by the engine and written into device state on admission. No tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

# A position that no request reaches: from there on a forbidden token would be allowed. Fits int32.
NEVER = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RuleFeatures:
    """Which rules some row of a batch needs; what is False costs nothing and its state need not exist."""

    penalties: bool = False
    bias: bool = False
    masks: bool = False

    @property
    def any(self) -> bool:
        return self.penalties or self.bias or self.masks

    def __or__(self, other: RuleFeatures) -> RuleFeatures:
        return RuleFeatures(
            penalties=self.penalties or other.penalties,
            bias=self.bias or other.bias,
            masks=self.masks or other.masks,
        )


@dataclass(frozen=True, kw_only=True)
class LogitRules:
    """One request's rules, in the order in which they apply: penalties, bias, masks.

    frequency, presence, repetition: the penalties. prompt_ids, output_ids: what they look at, empty without penalties;
    output_ids is what the request had when it was given its row: nothing at first, its tokens so far when it resumes.
    bias: (token id, what is added). earliest: (token id, first absolute position where it may be emitted), NEVER for
    suppressed ones. allowed: only these may be emitted, None allows all; a position in `earliest` holds for them too.
    """

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    earliest: tuple[tuple[int, int], ...] = ()
    allowed: tuple[int, ...] | None = None

    @property
    def has_penalties(self) -> bool:
        return bool(self.frequency or self.presence) or self.repetition != 1.0

    @property
    def masks_until(self) -> int:
        """From this absolute position on every token is allowed."""
        return NEVER if self.allowed is not None else max((position for _, position in self.earliest), default=0)

    @property
    def features(self) -> RuleFeatures:
        return self.features_at(0)

    def features_at(self, position: int) -> RuleFeatures:
        """What tokens at `position` and later need."""
        return RuleFeatures(penalties=self.has_penalties, bias=bool(self.bias), masks=position < self.masks_until)
