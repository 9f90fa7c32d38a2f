"""The command line: a command parses, imports in its body, calls one function, prints."""

import signal
import sys

from foxflow.cli import (  # noqa: F401  (each adds its commands to `app`)
    audit,
    backtest,
    bars,
    check,
    contracts,
    doctor,
    export,
    fetch,
    models,
    release,
    runs,
    universe,
)
from foxflow.cli.app import app
from foxflow.errors import FoxflowError


def main() -> None:
    """Run the command line: a user's error is one line and exit 1, wrong usage exit 2, an interrupt exit 130."""
    # Ended politely, a run removes what is half done, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="foxflow")
    except FoxflowError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read this has seen enough; without a place to go, what is still buffered would complain at the end.
        sys.stdout = None
        sys.exit(1)
    except OSError as e:
        # The machine's: a full disk, a name that is too long, a file where a folder should be.
        print(f"error: {e.filename or 'output'}: {e.strerror}", file=sys.stderr)
        sys.exit(1)
