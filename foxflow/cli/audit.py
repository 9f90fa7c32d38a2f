"""`foxflow audit`: attack every step from stored bars to fills, and name what leaks."""

from pathlib import Path

from foxflow.cli.app import app, interruptible, with_experiment, with_json, with_out
from foxflow.cli.printing import print_json, print_rows


@app.command()
@with_experiment
@with_out
@with_json
def audit(
    config: str,
    model: str | None,
    symbols: str | None,
    assignments: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Attack bars, features, labels, splits, scaler, model, graphs, positions and fills; exit 1 on the first leak.

    CONFIG is a TOML file or the name of an embedded config: returns (the default) or volatility. The model is fitted
    on two folds. Nothing is written.
    """
    from foxflow import audit as audits
    from foxflow import config as configs
    from foxflow import experiment, processes
    from foxflow.cli.backtest import with_symbols

    settings = configs.load(config, overrides=with_symbols(assignments, symbols), model=model)
    with interruptible("nothing was written; give the same command again"):
        experiment.require_runnable(settings)
        store = experiment.open_store(experiment.home(out), settings.data.source)
        # In a process of one thread, as every fit: two of one forecast are then the same bits.
        with processes.workers(1) as pool:
            found = pool.submit(audits.full, settings, store).result()
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        {"attack": c.attack, "target": c.target, "n": c.n, "result": f"held{', ' if c.note else ''}{c.note}"}
        for c in found.checks
    ]
    title = f"{settings.experiment.name}, {settings.model.name}: no leak found in {found.seconds:.0f} s"
    print_rows(rows, as_json=False, title=title)
