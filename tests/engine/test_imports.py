"""What is imported by what, as a fresh interpreter sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest

TORCHLESS = (
    "frostline.engine.scheduler",
    "frostline.engine.admission",
    "frostline.engine.batch",
    "frostline.engine.preemption",
    "frostline.engine.reservation",
    "frostline.engine.reuse",
    "frostline.engine.stay",
    "frostline.engine.finish",
    "frostline.engine.request",
    "frostline.engine.planner",
    "frostline.engine.loop",
    "frostline.engine.engine",
    "frostline.cache.keys",
    "frostline.cache.pages",
    "frostline.cache.prefix",
    "frostline.speculative.plan",
    "frostline.speculative.step",
    "frostline.text.detokenizer",
    "frostline.text.stop",
    "frostline.llm",
)


def in_fresh_interpreter(code: str) -> str:
    code = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("forbidden", ["torch", "transformers", "numpy"])
def test_scheduler_admission_finish_and_pages_import_no_torch(forbidden: str) -> None:
    imports = "; ".join(f"import {module}" for module in TORCHLESS)
    assert in_fresh_interpreter(f"{imports}; print({forbidden!r} in sys.modules)") == "False"


def test_public_names_are_imported_when_used() -> None:
    code = (
        "import frostline; early = [m for m in sys.modules if m.startswith('frostline.')]; "
        "names = [getattr(frostline, name) for name in frostline.__all__]; "
        "print(early, len(names) == len(dir(frostline)), 'torch' in sys.modules, frostline.LLM.__module__)"
    )
    assert in_fresh_interpreter(code) == "[] True False frostline.llm"


def test_a_name_that_does_not_exist() -> None:
    import frostline

    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = frostline.LMM
