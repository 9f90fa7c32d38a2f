"""A page in headless Chromium, driven through its debugging pipe: what it complains of, and how it lies on the screen."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: nothing can open the page")
WAIT_S = 60.0

# What is wrong with the page as it lies now, each fault in words; an empty list is a good page.
FAULTS = """
(() => {
  const faults = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push(`the page scrolls sideways: ${document.documentElement.scrollWidth} > ${width}`);
  const box = (e) => e.getBoundingClientRect();
  const shown = (e) => { const b = box(e); return b.width > 0 && b.height > 0; };
  const meets = (a, b, by) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > by && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > by;
  for (const plot of document.querySelectorAll('.plot')) {
    const svg = plot.querySelector('.main-svg');
    if (!svg || !shown(svg)) { faults.push(`${plot.id} is not drawn`); continue; }
    const marks = plot.querySelectorAll('.trace path, .points path, .bars path, .lines path');
    if (![...marks].some((e) => box(e).width > 0 || box(e).height > 0)) faults.push(`${plot.id} shows nothing`);
    const outer = box(plot);
    const words = [...plot.querySelectorAll('.xtick text, .x2tick text, .ytick text, .y2tick text, .xtitle, .ytitle, .y2title, .legendtext')].filter(shown);
    for (const word of words) {
      const b = box(word);
      if (b.left < outer.left - 1 || b.right > outer.right + 1 || b.top < outer.top - 1 || b.bottom > outer.bottom + 1) faults.push(`${plot.id}: "${word.textContent}" is cut off`);
    }
    for (const axis of ['.xtick text', '.ytick text', '.y2tick text', '.legendtext', '.annotation-text']) {
      const of = [...plot.querySelectorAll(axis)].filter(shown);
      for (let i = 0; i < of.length; i++) for (let j = i + 1; j < of.length; j++)
        if (meets(box(of[i]), box(of[j]), 1)) faults.push(`${plot.id}: "${of[i].textContent}" lies on "${of[j].textContent}"`);
      const said = of.map((e) => e.textContent);
      if (axis !== '.annotation-text' && new Set(said).size < said.length) faults.push(`${plot.id}: ${axis} repeats ${said}`);
    }
    const legend = plot.querySelector('.legend .bg'), area = plot.querySelector('.plot .bg, .bglayer rect, .nsewdrag');
    if (legend && area && meets(box(legend), box(area), 2)) faults.push(`${plot.id}: the legend lies on the curves`);
    for (const title of plot.querySelectorAll('.ytitle, .y2title'))
      for (const tick of plot.querySelectorAll('.ytick text, .y2tick text'))
        if (shown(title) && shown(tick) && meets(box(title), box(tick), 1)) faults.push(`${plot.id}: "${title.textContent}" lies on "${tick.textContent}"`);
  }
  for (const e of document.querySelectorAll('main *')) {
    if (e.closest('.plot, .scroll, svg')) continue;
    if (box(e).right > width + 1) faults.push(`<${e.tagName.toLowerCase()} class="${e.className}"> reaches out of the page: ${e.textContent.slice(0, 60)}`);
  }
  return faults;
})()
"""


class Browser:
    """One page of a running Chromium; `complaints` are errors of its console and what it could not load or run."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.complaints: list[str] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self._heard(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _heard(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.complaints.append(json.dumps(params["args"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "data:", "blob:")):
                self.complaints.append(f"loads {params['request']['url']}")

    def attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def evaluate(self, code: str) -> Any:
        found = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def show(self, width: int, *, dark: bool, height: int = 900) -> None:
        """Set the size and theme of the screen, and draw again what depends on them."""
        theme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._settle()

    def open(self, path: Path) -> float:
        """Open a page, and return the seconds until it is drawn."""
        started = time.monotonic()
        self.complaints.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self._settle()
        return time.monotonic() - started

    def _settle(self) -> None:
        """Wait until nothing is left to draw, and Plotly has answered a change of size."""
        limit = time.monotonic() + WAIT_S
        done = "document.readyState === 'complete' && (document.documentElement.dataset.drawn === 'yes' || !document.getElementById('figures'))"
        pause = "new Promise((next) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(next)), 350))"
        while True:
            self.evaluate(pause)
            if self.evaluate(done):
                return
            assert time.monotonic() < limit, "the page is not drawn"

    def faults(self) -> list[str]:
        found: list[str] = self.evaluate(FAULTS)
        return found

    def picture(self, path: Path) -> None:
        """Write the whole page, top to bottom, as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Return a Chromium that ends with the block."""
    assert CHROMIUM is not None
    to_chromium, ours_out = os.pipe()
    ours_in, from_chromium = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # It reads from 3 and writes to 4: the shell moves the ends of our pipes there.
        options = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
        ]  # fmt: skip
        script = f'exec "$0" "$@" 3<&{to_chromium} 4>&{from_chromium}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, CHROMIUM, *options],
            pass_fds=(to_chromium, from_chromium),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_chromium)
        os.close(from_chromium)
        try:
            found = Browser(ours_in, ours_out)
            found.attach()
            yield found
            found._session = None
            found.send("Browser.close")
        finally:
            os.close(ours_in)
            os.close(ours_out)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
