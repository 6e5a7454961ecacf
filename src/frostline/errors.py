"""Every error that a user can cause, each with its remedy in the message.

`assert` stays for our own mistakes; whatever load, files or arguments can cause is raised from here. The command line
prints these as one line and exits with 2; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations


class FrostlineError(Exception):
    """Base of all errors a user can act on."""


class ConfigError(FrostlineError):
    """A setting, or a combination of settings, that cannot be honoured."""


class ModelError(FrostlineError):
    """A checkpoint or config file that does not hold what it should."""


class PairError(ModelError):
    """A target and an assistant that do not fit each other."""


class RequestError(FrostlineError):
    """One request that cannot be served; other requests are not touched."""
