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
    """A plugin, a model or a source of bars, that is absent, ambiguous or breaks its contract."""


class ReleaseError(FoxflowError):
    """A release that is absent, damaged or not equal to the model it was made from."""


class UnavailableError(FoxflowError):
    """A source that does not answer now and may later; what was fetched is kept, and the same call goes on from there.

    `retry_after_s`: how long it asked to be left alone, where it said so.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@contextmanager
def plugin_call(name: str, what: str, *, kind: str = "model") -> Iterator[None]:
    """Turn whatever a plugin raises into a PluginError that names it, what it was asked for, and its own words."""
    try:
        yield
    except FoxflowError:
        raise
    except Exception as e:
        words = " ".join(str(e).split()) or "no message"
        raise PluginError(f"{kind} {name!r} failed in {what}: {type(e).__name__}: {words}; mend the plugin") from e


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
