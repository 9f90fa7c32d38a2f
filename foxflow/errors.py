"""Every error a user can cause. A message names the value, what was expected and what to do next."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FoxflowError(Exception):
    """A user's mistake or bad input; the command line prints it as one line and exits 1."""


class ConfigError(FoxflowError):
    """A configuration that cannot be run as written."""


class DataError(FoxflowError):
    """Bars, labels or features that cannot be used as they are."""


class LeakageError(DataError):
    """Something from after a cut reached a fit, or a score looks at bars its model has seen."""


class PluginError(FoxflowError):
    """A model plugin that is absent, ambiguous or breaks the contract."""


class ReleaseError(FoxflowError):
    """A release that is absent, damaged or not equal to the model it was made from."""


@contextmanager
def plugin_call(name: str, what: str) -> Iterator[None]:
    """Turn whatever a plugin raises into a PluginError that names it, what it was asked for, and its own words."""
    try:
        yield
    except FoxflowError:
        raise
    except Exception as e:
        words = " ".join(str(e).split()) or "no message"
        raise PluginError(f"model {name!r} failed in {what}: {type(e).__name__}: {words}; mend the plugin") from e


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: the value, what is known, the nearest.

    Examples
    --------
    >>> unknown("model", "rigde", ["mamba2", "ridge"])
    "unknown model 'rigde'; known: mamba2, ridge; did you mean 'ridge'?"
    """
    names = sorted(known)
    message = f"unknown {what} {name!r}; known: {', '.join(names) if names else 'none'}"
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"{message}; did you mean {nearest[0]!r}?" if nearest else message
