"""The report in headless Chromium, on a phone and a laptop, light and dark: drawn, legible, silent, never wider."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_chromium
from report_states import STATES

from foxflow import report

pytestmark = needs_chromium
SCREENS = ((390, False), (390, True), (1440, True), (1440, False))
# Every other state on the two that differ most: a drawing takes seconds.
TWO = ((390, True), (1440, False))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def faults(chromium: Browser, page: Path, screens: tuple[tuple[int, bool], ...]) -> list[str]:
    """Return what is wrong with a page on any screen, and what the console said."""
    found = []
    chromium.send("Page.navigate", url="about:blank")
    for at, (width, dark) in enumerate(screens):
        chromium.show(width, dark=dark)
        if at == 0:
            chromium.open(page)
        found += [f"{width} {'dark' if dark else 'light'}: {fault}" for fault in chromium.faults()]
    return found + chromium.complaints


@pytest.mark.slow  # 14 pages, about 5 s each on an idle machine
@pytest.mark.parametrize("name", STATES)
def test_a_page_is_drawn_and_legible_on_every_screen(name: str, chromium: Browser, tmp_path: Path) -> None:
    report.write(tmp_path / "report.html", *STATES[name]())
    assert (tmp_path / "report.html").stat().st_size < 8e6
    assert faults(chromium, tmp_path / "report.html", SCREENS if name == "usual" else TWO) == []


def test_the_checks_see_what_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<!doctype html><title>x</title><main><div style="width: 2000px">wide</div><div class="plot" id="gone"></div></main>'
        "<script>console.error('trouble'); nothing.there()</script>"
    )
    chromium.show(390, dark=False)
    chromium.open(page)
    assert [f.split(":")[0].split(" class")[0] for f in chromium.faults()] == [
        "the page scrolls sideways",
        "gone is not drawn",
        "<div",
    ]
    assert len(chromium.complaints) == 2
