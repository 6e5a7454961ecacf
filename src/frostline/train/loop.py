"""The optimisation loop that target and drafter share: AdamW, clipping, a schedule by the clock, no host wait per step.

Knows nothing of what the loss means.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from frostline.errors import ConfigError
from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.train.initial import decayed
from frostline.train.schedule import LOG_EVERY, Budget, Reporter, learning_rate

Metrics = dict[str, Tensor]
LossFn = Callable[[float], tuple[Tensor, Metrics]]


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """AdamW's settings. peak: the learning rate after warm-up; decay: weight decay of matrices."""

    peak: float = 3e-3
    decay: float = 0.3
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    steps: int
    seconds: float
    curve: list[dict[str, float]]


def mixed_precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 autocast over float32 weights on CUDA; the weights' own dtype elsewhere.

    On CUDA the attention kernels are named: those that take [B, H, T, hd] of any head width and a broadcast mask.
    """
    stack = contextlib.ExitStack()
    if device.type == "cuda":
        stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
    return stack


def maybe_compiled(function: Callable[..., Any], *, enabled: bool, console: Console) -> Callable[..., Any]:
    """`function` through torch.compile, falling back to itself, said aloud, when the compiler fails."""
    if not enabled:
        return function
    state = {"run": torch.compile(function, dynamic=False)}

    def run(*arguments: Any) -> Any:
        try:
            return state["run"](*arguments)
        except RuntimeError as error:
            if state["run"] is function or isinstance(error, torch.OutOfMemoryError):
                raise
            console.print(f"torch.compile failed ({type(error).__name__}: {str(error)[:300]}), going on without it")
            state["run"] = function
            return function(*arguments)

    return run


def fit(
    module: Decoder | Assistant,
    loss_fn: LossFn,
    budget: Budget,
    optimiser: Optimiser,
    reporter: Reporter,
    *,
    watch: Callable[[float], dict[str, float]] | None = None,
    warm_up: Callable[[], None] | None = None,
) -> Fitted:
    """Minimise loss_fn(fraction) over the module's trainable parameters until the budget is spent.

    watch: called at each quarter of the run and at its end for further numbers, the module in eval mode. warm_up: run
    before the clock starts (it is paid for, but skips nothing of the schedule). Raises ConfigError when the loss is no
    longer finite.
    """
    device = module.device
    shrunk, kept = decayed(module)
    groups = [{"params": shrunk, "weight_decay": optimiser.decay}, {"params": kept, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=optimiser.peak, betas=optimiser.betas, fused=device.type == "cuda")
    module.train()
    module.prepare()
    with mixed_precision(device):
        if warm_up is not None:
            warm_up()
            adam.zero_grad(set_to_none=True)
    budget.start()
    begun, step, quarters = time.monotonic(), 0, 0
    while (fraction := budget.fraction(step)) < 1.0:
        rate = learning_rate(optimiser.peak, max(fraction, 1e-3))
        for group in adam.param_groups:
            group["lr"] = rate
        with mixed_precision(device):
            loss, metrics = loss_fn(fraction)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_([*shrunk, *kept], optimiser.clip)
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            _log(reporter, fraction, step, begun, loss, metrics)
        step += 1
        if watch is not None and (quarter := int(4 * budget.fraction(step))) > quarters and quarter < 4:
            quarters = quarter
            _watch(module, watch, reporter, quarter / 4)
    if watch is not None:
        _watch(module, watch, reporter, 1.0)
    module.eval()
    module.prepare()
    reporter.close()
    return Fitted(steps=step, seconds=time.monotonic() - begun, curve=reporter.curve)


def _log(reporter: Reporter, fraction: float, step: int, begun: float, loss: Tensor, metrics: Metrics) -> None:
    value = loss.item()
    if not math.isfinite(value):
        raise ConfigError(f"the loss is {value} at step {step}: lower the learning rate, or check the training text")
    seconds = time.monotonic() - begun
    numbers = {name: metric.item() for name, metric in metrics.items()}
    reporter.log(fraction, loss=value, **numbers, steps=step, ms_per_step=1e3 * seconds / (step + 1))


@torch.no_grad()
def _watch(
    module: Decoder | Assistant, watch: Callable[[float], dict[str, float]], reporter: Reporter, fraction: float
) -> None:
    module.eval()
    module.prepare()
    with mixed_precision(module.device):
        reporter.log(fraction, **watch(fraction))
    module.train()
