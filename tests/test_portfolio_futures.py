"""What a fee per contract costs: a share of futures is a contract."""

from datetime import UTC, date, datetime
from typing import Any

import polars as pl
import pytest
from conftest import free

from foxflow import bars, market, portfolio
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA
from foxflow.config import Data, Futures
from foxflow.errors import DataError
from foxflow.futures import CONTRACT_REVISION_SCHEMA
from foxflow.signals import POSITION_SCHEMA

KNOWN = datetime(2023, 1, 1, tzinfo=UTC)


def raw() -> pl.DataFrame:
    """Return daily bars of two contracts that stand still, the later one a tenth above, with 1,000 traded each day."""
    closes = bars.session_closes("CMES", date(2024, 1, 2), date(2024, 4, 12))
    return pl.concat(
        [
            closes.filter(pl.col("session") <= until).select(
                pl.lit(symbol).alias("symbol"), "ts", *(pl.lit(price).alias(c) for c in bars.PRICES), pl.lit(1_000.0).alias("volume")
            )
            for symbol, price, until in (("ESH4", 100.0, date(2024, 3, 15)), ("ESM4", 110.0, date(2024, 4, 12)))
        ]
    ).cast(BAR_SCHEMA)  # fmt: skip


def reading(adjust: Any, *multipliers: float | None) -> market.Reading:
    rows = [
        ("ES", symbol, expiry, multiplier, KNOWN)
        for (symbol, expiry), multiplier in zip(
            (("ESH4", date(2024, 3, 15)), ("ESM4", date(2024, 6, 21))), multipliers, strict=True
        )
    ]
    contracts = pl.DataFrame(rows, schema=CONTRACT_REVISION_SCHEMA, orient="row")
    series = Futures(roots=("ES",), roll="calendar", adjust=adjust, days_before=5)
    data = Data(source="store", bar="1d", calendar="CMES", symbols=())
    until = datetime(2024, 4, 12, 22, tzinfo=UTC)
    return market.Reading(data, series, EVENT_SCHEMA.to_frame(), contracts, None, until=until)


@pytest.mark.parametrize(("adjust", "later"), [("ratio", 10_000 / 50 / 1.1), ("difference", 10_000 / 50)])
def test_a_fee_per_contract_counts_the_contracts_that_are_held_before_and_after_a_roll(
    adjust: Any, later: float
) -> None:
    read = reading(adjust, 50.0, 50.0)
    made, rolls = read.make(raw())
    assert made["close"].unique().to_list() == [100.0]
    wanted = pl.DataFrame([("ES", made["ts"][3], 1.0, 1.0)], schema=POSITION_SCHEMA, orient="row")
    book = portfolio.run(
        wanted, made, band=0.0, costs=free(fee_per_share=2.0), rolls=rolls, factors=read.factors(raw())
    )
    # A million buys 10,000 points, which are 200 contracts of 50, less what their fee leaves no cash for.
    points = 1_000_000 / (100 + 2 / 50)
    share = points / 10_000
    assert book.fills["shares"].to_list() == pytest.approx([points, -points, points], rel=1e-12)
    assert book.charges["raw_shares"].to_list() == pytest.approx([200 * share, -200 * share, later * share], rel=1e-9)
    assert book.costs["per_share_fee"] == pytest.approx(2 * 200 * share)
    assert book.costs["roll"] == pytest.approx(2 * (200 + later) * share)
    assert book.equity["equity"][-1] == pytest.approx(1_000_000 - 2 * (400 + later) * share)


def test_participation_counts_contracts() -> None:
    read = reading("ratio", 50.0, 50.0)
    made, rolls = read.make(raw())
    wanted = pl.DataFrame([("ES", made["ts"][3], 1.0, 1.0)], schema=POSITION_SCHEMA, orient="row")
    book = portfolio.run(
        wanted, made, band=0.0, costs=free(participation_limit=0.12), rolls=rolls, factors=read.factors(raw())
    )
    # 0.12 of 1,000 contracts at 50 points each, and the next day the rest of 200.
    assert book.charges["raw_shares"].to_list()[:2] == pytest.approx([120.0, 80.0])


@pytest.mark.parametrize("multipliers", [(None, None), (50.0, 5.0)])
def test_a_root_without_one_multiplier_is_refused_by_name(multipliers: tuple[float | None, float | None]) -> None:
    with pytest.raises(DataError, match=r"the contracts of ES have the multipliers .* record it with"):
        reading("ratio", *multipliers).factors(raw())
