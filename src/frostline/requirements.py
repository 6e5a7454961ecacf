"""Checks, before anything heavy is imported, that the installed libraries are the versions this package needs.

An old `transformers` does not know the model types of Gemma 4 and would fail deep inside with a KeyError. The ranges
are read from the package's own metadata, so they are written once, in pyproject.toml.
"""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

from frostline.errors import ConfigError

CHECKED = ("torch", "transformers", "tokenizers", "safetensors")


def check_requirements(names: tuple[str, ...] = CHECKED) -> None:
    """Raises ConfigError naming the library, the version found, the versions needed and the command that installs it.

    A source tree that was never installed has no metadata and is not checked.
    """
    try:
        lines = metadata.requires("frostline") or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        if requirement.name not in names or requirement.marker is not None:
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            raise ConfigError(f"{requirement.name} is not installed; {remedy}") from None
        if not requirement.specifier.contains(found, prereleases=True):
            raise ConfigError(
                f"{requirement.name} {found} is installed and frostline needs {requirement.specifier}; {remedy}"
            )
