"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displayModeBar: false };

  const themed = (layout) => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = {
      gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line"), zerolinewidth: 1,
      automargin: true, title: { font: { size: 12 }, standoff: 8 },
    };
    const base = {
      autosize: true, margin: { l: 52, r: 12, t: 40, b: 40 }, xaxis: axis, yaxis: axis,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("--muted") },
      legend: { font: { color: color("--ink") } },
      hoverlabel: { bgcolor: color("--panel"), bordercolor: color("--line"), font: { color: color("--ink") } },
    };
    // On a touch screen a finger moves the page, not the axis.
    return { ...layout, template: { layout: base }, ...(isTouch ? { dragmode: false } : {}) };
  };

  const draw = () => {
    for (const [id, figure] of Object.entries(figures)) Plotly.react(id, figure.data, themed(figure.layout), config);
  };
  draw();
  dark.addEventListener("change", draw);
})();
