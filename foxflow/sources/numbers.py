"""Numbers as people write them: decimal comma, thousands, 496.07M, $, words for nothing; no style is guessed."""

from dataclasses import dataclass

import polars as pl

from foxflow.errors import DataError
from foxflow.sources.table import Table

# What stands for no value, in lower case.
_NULLS = ("null", "<null>", "nan", "nat", "n/a", "n.a.", "na", "<na>", "#n/a", "#n/a n/a", "none", "nil")
NOTHING = ("", *_NULLS, "-", "--", "—", ".", "?", "\\n")
_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
# No group of thousands starts with a zero.
_GROUPED = r"^[+-]?[1-9]\d{0,2}(?:M\d{3})+$"
_SPACES = r"[\s\x{00A0}\x{202F}'\x{2019}_]"
_SUFFIXES = {"k": 3, "m": 6, "b": 9, "t": 12}


@dataclass(frozen=True)
class Style:
    """How a file writes numbers: the decimal mark, and the mark between thousands (empty when there is none)."""

    decimal: str = "."
    thousands: str = ""


def settle(table: Table, texts: list[pl.Series], *, decimal: str | None) -> Style:
    """Return the one style in which these texts are numbers.

    `texts`: the columns of prices and volume of `table`, as text; `decimal`: the mark that the user named.

    Raises
    ------
    DataError
        When the texts fit two styles that give different numbers, or contradict each other.
    """
    values = pl.concat([_bare(text) for text in texts]) if texts else pl.Series(dtype=pl.String)
    comma, point = (
        values.filter(values.str.contains(",", literal=True)),
        values.filter(values.str.contains(".", literal=True)),
    )
    if decimal is not None:
        return Style(decimal, {".": ",", ",": "."}[decimal])
    if not len(comma):
        # Two points in one number can only stand between thousands.
        return Style(",", ".") if bool((point.str.count_matches(".", literal=True) > 1).any()) else Style(".", "")
    votes: dict[str, str] = {}
    both = comma.filter(comma.str.contains(".", literal=True))
    for value in both.head(1):
        votes["," if value.rfind(",") > value.rfind(".") else "."] = value
    alone = comma.filter(~comma.str.contains(".", literal=True))
    for value in alone.filter(~alone.str.contains(_GROUPED.replace("M", ","))).head(1):
        votes.setdefault(",", value)
    dots = point.filter(~point.str.contains(",", literal=True))
    for value in dots.filter(~dots.str.contains(_GROUPED.replace("M", r"\."))).head(1):
        votes.setdefault(".", value)
    for value in alone.filter(alone.str.count_matches(",", literal=True) > 1).head(1):
        votes.setdefault(".", value)
    if len(votes) == 1:
        mark = next(iter(votes))
        return Style(mark, {".": ",", ",": "."}[mark])
    if votes:
        raise DataError(
            f"{_place(table, texts, votes[','])}: {votes[',']!r} has a decimal comma, and "
            f"{_place(table, texts, votes['.'])}: {votes['.']!r} a decimal point; write one of them, or name the mark "
            "with --decimal"
        )
    raise DataError(
        f"{_place(table, texts, comma[0])}: {comma[0]!r} is a thousand times larger with a comma between thousands "
        "than with a decimal comma, and no number in the file tells which; say it with --decimal . or --decimal ,"
    )


def _place(table: Table, texts: list[pl.Series], value: str) -> str:
    rows = [row for text in texts for row in (_bare(text) == value).arg_true()]
    return f"{table.file}, {table.unit} {table.numbers[min(rows)]}"


def refuse_doubtful(prices: list[pl.Series], volume: pl.Series | None, *, file: str, is_european: bool) -> None:
    """Refuse texts that two habits read as different numbers, where `settle` would see nothing to settle.

    `is_european`: whether fields are separated as where the comma is the decimal mark, so that a point may be none.

    Raises
    ------
    DataError
        On volumes such as 10.012 beside prices that have no decimals; on prices such as 112'160, thousands or 32nds.
    """
    texts = pl.concat([price.str.strip_chars() for price in prices])
    quoted = texts.filter(texts.str.contains(r"\d['\x{2019}]\d{3}"))
    if len(quoted) and not quoted.str.contains(r"[.,]").any():
        raise DataError(
            f"{file}: {quoted[0]!r} is a price of thousands, or of points and 32nds as bonds are quoted, and no number "
            "in the file tells which; say that it is of thousands with --decimal ., or write decimals"
        )
    grouped = _GROUPED.replace("M", r"\.")
    points = texts.filter(texts.str.contains(".", literal=True))
    if texts.str.contains(",", literal=True).any() or not points.str.contains(grouped).all():
        return
    volumes = pl.Series(dtype=pl.String) if volume is None else volume.str.strip_chars()
    written = volumes.filter(volumes.str.contains(".", literal=True))
    doubtful = written.head(1)
    if not written.str.contains(grouped).all() or volumes.str.contains(r"^\d{4,}$").any():
        doubtful = doubtful.clear()
    if not len(doubtful) and is_european and not len(written) and not texts.str.contains(r"^[+-]?\d{4}").any():
        doubtful = points.head(1)
    for value in doubtful:
        raise DataError(
            f"{file}: a number such as {value!r} is a thousand times larger with a point between thousands than with a "
            "decimal point, and no number in the file tells which; say it with --decimal . or --decimal ,"
        )


def parse(text: pl.Series, style: Style) -> tuple[pl.Series, pl.Series]:
    """Return the numbers (null where nothing or no number is written) and where text is no number.

    A suffix K, M, B or T multiplies by a power of ten, as in 496.07M = 496,070,000.
    """
    nothing = is_nothing(text)
    bare = _bare(text)
    suffix = bare.str.extract(r"[\d.,]([kKmMbBtT])$").str.to_lowercase()
    has_suffix = suffix.is_not_null()
    if has_suffix.any():
        bare = pl.select(
            pl.when(has_suffix).then(bare.str.slice(0, bare.str.len_chars() - 1)).otherwise(bare)
        ).to_series()
    if style.thousands:
        mark = "\\." if style.thousands == "." else style.thousands
        decimal = "\\." if style.decimal == "." else style.decimal
        grouped = bare.str.contains(rf"^[+-]?[1-9]\d{{0,2}}(?:{mark}\d{{3}})+(?:{decimal}\d*)?$")
        unmarked = bare.str.replace_all(style.thousands, "", literal=True)
        bare = pl.select(pl.when(grouped).then(unmarked).otherwise(bare)).to_series()
    if style.decimal == ",":
        # A point that is left stands in no group of thousands, so it makes no number.
        bare = bare.str.replace_all(".", "?", literal=True).str.replace_all(",", ".", literal=True)
    sound = bare.str.contains(_PLAIN)
    value = pl.select(pl.when(sound).then(bare).otherwise(None)).to_series().cast(pl.Float64, strict=False)
    if has_suffix.any():
        power = suffix.replace_strict(_SUFFIXES, return_dtype=pl.Int32, default=0)
        # Rounded, because 496.07 has no float of its own and its product may miss the whole number it means.
        scaled = (value * pl.lit(10.0).pow(power)).round(6)
        value = pl.select(pl.when(has_suffix).then(scaled).otherwise(value)).to_series()
    value = pl.select(pl.when(nothing | ~value.is_finite()).then(None).otherwise(value)).to_series()
    return value, value.is_null() & ~nothing


def is_nothing(text: pl.Series) -> pl.Series:
    """Return where a text stands for no value."""
    return text.str.strip_chars().str.to_lowercase().is_in(NOTHING).fill_null(value=True)


def _bare(text: pl.Series) -> pl.Series:
    """Return texts without currency signs and the spaces and apostrophes that stand between thousands."""
    text = text.str.strip_chars().str.replace(r"^([+-]?)[$€£¥]", "${1}").str.replace("\u2212", "-", literal=True)
    return text.str.replace_all(rf"(\d){_SPACES}(\d{{3}})", "${1}${2}").str.replace_all(
        rf"(\d){_SPACES}(\d{{3}})", "${1}${2}"
    )
