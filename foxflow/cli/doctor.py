"""`foxflow doctor`."""

import sys
from pathlib import Path

from foxflow.cli.app import app, with_json, with_out
from foxflow.cli.printing import print_rows


@app.command()
@with_out
@with_json
def doctor(out: Path | None, as_json: bool) -> None:
    """Say what is installed and which devices are real; exit 1 where something is wrong."""
    from foxflow import doctor as checks

    findings = checks.examine(out)
    print_rows(findings, as_json=as_json, title="doctor")
    if any(f["status"] == "wrong" for f in findings):
        sys.exit(1)
