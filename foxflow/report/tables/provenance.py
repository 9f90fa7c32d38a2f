"""Where the numbers come from, and by which conventions."""

from collections.abc import Mapping, Sequence
from typing import Any

from foxflow.report.blocks import facts, no, table
from foxflow.report.text import NOT_KNOWN, count, day, escape, names, number, percent

Summary = Mapping[str, Any]


def provenance(summary: Summary) -> str:
    """Return where the numbers come from and by which conventions."""
    spread = summary.get("forecast_std")
    found = {
        "Run": summary["run_id"],
        "Release": summary.get("release") or NOT_KNOWN,
        "Forecasts sha256": summary.get("forecasts_sha256") or NOT_KNOWN,
        "Forecasts": f"{number(summary.get('n_forecasts'), 0)}, standard deviation {number(spread, 5)}",
        "Sessions a year": number(summary.get("sessions_per_year"), 0),
        "Time taken": f"{number(summary.get('seconds'), 1)} s",
        "Fills": _filled(summary),
        "Prices": _adjusted(summary.get("adjustments")),
        "Corrections": _corrected(summary),
        **_rolled(summary.get("rolls") or []),
        **_left_out(summary.get("bars_outside_sessions") or 0),
        "Findings accepted": _accepted(summary.get("accepted_findings")),
        "Buy-and-hold": "The same symbols in equal weights, set anew when one enters or leaves, at the same costs.",
        "Sharpe ratio": "Of session returns over a risk-free rate of 0; interval by Mertens (2002).",
        "IC": "Pooled over symbols and dates; t-statistic by Newey and West (1987), lags for overlapping outcomes.",
    }
    return facts(found)


FILLS = {
    "next_open": "At the next bar's open",
    "next_close": "At the next bar's close",
    "next_mid": "At the mid of the next bar's high and low",
}


def _filled(summary: Summary) -> str:
    """Return which price an order gets and how late."""
    trading = summary.get("trading") or {}
    fill = trading.get("fill") or "next_open"
    price = FILLS.get(str(fill), f"At {fill}")
    late = [count(int(trading["delay_bars"]), "bar")] if trading.get("delay_bars") else []
    late += [f"{number(trading['delay_s'], 0)} s"] if trading.get("delay_s") else []
    delay = f", {' and '.join(late)} late" if late else ""
    told = f"{price} plus slippage{delay}; shares are counted from what was known at ts, before that price."
    limit = trading.get("participation_limit")
    if limit is None:
        return told
    cut = count(int(trading.get("n_orders_capped") or 0), "order")
    return f"{told} No order takes more than {percent(limit, 1)} of a bar's volume: {cut} cut."


def _accepted(found: Sequence[str] | None) -> str:
    if not found:
        return "No severe finding in the bars as they came." if found is not None else NOT_KNOWN
    return f"{count(len(found), 'severe finding')}, accepted by name: {names(found, limit=6)}."


def _adjusted(found: Mapping[str, Mapping[str, int]] | None) -> str:
    """Return which splits and dividends were applied: prices of a symbol without any are those of the file."""
    if found is None:
        return NOT_KNOWN
    groups = {s: [count(n, kind) for kind, n in sorted(c.items(), reverse=True) if n] for s, c in found.items()}
    adjusted = [f"{s} ({' and '.join(counts)})" for s, counts in groups.items() if counts]
    if not adjusted:
        return "No recorded splits or dividends: as stored, so a split would count as a loss or a gain."
    without = [s for s, counts in groups.items() if not counts]
    none = f" Without any on record: {names(without, limit=12)}." if without else ""
    return (
        f"Adjusted forward for splits and dividends, {names(adjusted, limit=12)}: a later event changes no earlier "
        f"value.{none}"
    )


def _corrected(summary: Summary) -> str:
    n, late = summary.get("corrections"), summary.get("corrections_after_last_cut")
    if n is None:
        return NOT_KNOWN
    if not n:
        return "No bar was ever corrected."
    after = f" Known only after the last cut, so in no fit: {late:,}." if late else ""
    return (
        f"{count(n, 'correction')}: a fold sees those known at its cut; fills and outcomes are of first values.{after}"
    )


def _rolled(rolls: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how the continuous series of futures went from contract to contract, nothing where there are none."""
    if not rolls:
        return {}
    said = [f"{r['symbol']} from {r['old']} to {r['new']} on {day(r['ts'])}" for r in rolls]
    return {
        "Rolls": f"{count(len(rolls), 'roll')}, {names(said, limit=12)}: decided by what was known at the close "
        "before, adjusted forward so that no gap is a return; what is held through one is sold and bought again at "
        "cost."
    }


def _left_out(n: int) -> dict[str, str]:
    return {"Bars left out": f"{count(n, 'bar')} outside every session of the calendar."} if n else {}


def findings(rows: Sequence[Summary]) -> str:
    """Return what the checks of the bars found, the severe first."""
    rank = {"severe": 0, "warning": 1, "note": 2}
    lines = [
        [
            escape(str(row["name"]).replace("_", " ")),
            no("severe") if row["severity"] == "severe" else escape(row["severity"]),
            number(row["n"], 0),
            _symbols(row.get("symbols") or []),
        ]
        for row in sorted(rows, key=lambda r: (rank.get(str(r["severity"]), 3), str(r["name"])))
    ]
    return table(["Finding", "Severity", "Times", "Symbols"], lines, look="compact")


def _symbols(symbols: Sequence[str] | int) -> str:
    if isinstance(symbols, int):
        return number(symbols, 0)
    every = ", ".join(str(symbol) for symbol in symbols)
    return f'<span title="{escape(every)}">{escape(names(symbols, limit=6))}</span>'


def versions(found: Summary) -> str:
    """Return the versions of what was run, and the digests of the source and of the bars."""
    own = {name: str(version or NOT_KNOWN) for name, version in sorted((found.get("versions") or {}).items())}
    digests = {"source sha256": found.get("code_sha256"), "bars sha256": found.get("bars_sha256")}
    return facts({**own, **{name: str(value) for name, value in digests.items() if value}})


def document(config: Mapping[str, Any]) -> str:
    """Return the config as TOML."""
    import tomli_w

    return f'<div class="scroll"><pre tabindex="0">{escape(tomli_w.dumps(config))}</pre></div>'
