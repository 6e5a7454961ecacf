"""Where the bundled models lie: `models/` of a checkout, or inside the package when it was installed from a wheel.

Knows folder names only; it does not read a model.
"""

from __future__ import annotations

from pathlib import Path

from frostline.errors import ModelError

PREFIX = "frostline/"


def bundled_path(name: str) -> Path:
    """Folder of a bundled model, named with or without the prefix: `frostline/tiny`, `tiny-assistant`.

    Raises ModelError, naming what is there, for a name that is not bundled.
    """
    short = name.removeprefix(PREFIX)
    roots = _roots()
    for root in roots:
        folder = root / short
        if short not in ("", ".", "..") and "/" not in short and folder.is_dir():
            return folder
    known = sorted(folder.name for root in roots for folder in root.iterdir() if folder.is_dir())
    listing = ", ".join(PREFIX + k for k in known) or "none"
    raise ModelError(f"no bundled model {name!r}; bundled here: {listing}")


def _roots() -> list[Path]:
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    candidates = [package / "_models"]
    if (checkout / "pyproject.toml").is_file():
        candidates.insert(0, checkout / "models")
    return [c for c in candidates if c.is_dir()]
