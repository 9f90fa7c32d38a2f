"use strict";
(() => {
  const figures = Object.entries(JSON.parse(document.getElementById("figures").textContent));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 600px)");
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const config = { displayModeBar: false };

  const themed = (layout) => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const size = narrow.matches ? 11 : 12;
    const axis = {
      gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line"), zerolinewidth: 1,
      automargin: true, title: { font: { size }, standoff: 8 },
    };
    const base = {
      autosize: true, margin: { l: 44, r: 14, t: 30, b: 40 }, yaxis: axis,
      // Dates stay level: tilted ones cannot be read.
      xaxis: { ...axis, tickangle: 0, nticks: narrow.matches ? 5 : 10 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size, color: color("--muted") },
      legend: { font: { color: color("--ink"), size } },
      hoverlabel: { bgcolor: color("--panel"), bordercolor: color("--line"), font: { color: color("--ink") } },
    };
    // On a touch screen a finger moves the page, not the axis.
    return { ...layout, template: { layout: base }, ...(isTouch ? { dragmode: false } : {}) };
  };

  let round = 0;
  const draw = async () => {
    const mine = ++round;
    document.documentElement.dataset.drawn = "no";
    for (const [name, figure] of figures) {
      await Plotly.newPlot(name, figure.data, themed(figure.layout), config);
      // The page can be read and scrolled between one figure and the next.
      await new Promise((next) => setTimeout(next));
      if (mine !== round) return;
    }
    document.documentElement.dataset.drawn = "yes";
  };
  draw();
  dark.addEventListener("change", draw);
  // Drawn anew as a whole: Plotly's own answers to a resize keep the size or the margins of the old width. A phone also resizes the
  // page when its address bar goes, which changes no width.
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    document.documentElement.dataset.drawn = "no";
    clearTimeout(waiting);
    waiting = setTimeout(draw, 120);
  });
})();
