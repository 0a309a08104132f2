"use strict";
// Nothing here is needed to read the page: values under the pointer, and all folds open on paper.

addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});

const SVG = "http://www.w3.org/2000/svg";

function figure(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}

function curves(chart) {
  return [...chart.querySelectorAll(".plot path[data-name]")].map((path) => {
    // The two corners that close a stacked curve are no points of it.
    const line = path.getAttribute("d").replace(/L[^L]*L[^L]*Z$/, "");
    const points = (line.match(/[\d.-]+ [\d.-]+/g) || []).map((point) => point.split(" ").map(Number));
    return { name: path.dataset.name, points };
  });
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle; else high = middle;
  }
  if (high < 0) return null;
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
}

function hover(chart) {
  const { x0, x1, y0, y1, log, size, suffix, stacked } = chart.dataset;
  const frame = chart.querySelector(".frame");
  const height = Number(frame.getAttribute("height"));
  const tip = document.createElement("div");
  const cursor = document.createElementNS(SVG, "line");
  let lines = null;
  tip.className = "tip";
  tip.hidden = true;
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y2", height);
  chart.append(tip);
  frame.append(cursor);
  cursor.style.display = "none";

  function value(y) {
    const share = 1 - y / height;
    if (log === undefined) return Number(y0) + share * (y1 - y0);
    const low = Math.log10(y0);
    return 10 ** (low + share * (Math.log10(y1) - low));
  }

  frame.addEventListener("pointermove", (event) => {
    const box = frame.querySelector(".plot").getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    lines = lines || curves(chart);
    const found = lines.map((line) => ({ name: line.name, at: nearest(line.points, share * 1000) }))
      .filter((line) => line.at && Math.abs(line.at[0] - share * 1000) < 25);
    const step = Math.round(Number(x0) + share * (x1 - x0));
    // Of a stack the tallest comes first, and each stands on the one after it.
    const rows = found.map((line, i) => {
      const below = stacked !== undefined && i + 1 < found.length ? value(found[i + 1].at[1]) : 0;
      return `${line.name}: ${figure((value(line.at[1]) - below) / size)}${suffix ? " " + suffix : ""}`;
    });
    if (stacked !== undefined) rows.reverse();
    tip.textContent = [`near step ${step}`, ...rows].join("\n");
    tip.hidden = false;
    const left = box.left - chart.getBoundingClientRect().left + share * box.width;
    const room = chart.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, left + 14 > room ? left - tip.offsetWidth - 14 : left + 14)}px`;
    tip.style.top = `${frame.getBoundingClientRect().top - chart.getBoundingClientRect().top + 6}px`;
    cursor.style.display = "";
    cursor.setAttribute("x1", `${share * 100}%`);
    cursor.setAttribute("x2", `${share * 100}%`);
  });
  frame.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cursor.style.display = "none";
  });
}

for (const chart of document.querySelectorAll("figure.chart")) {
  const frame = chart.querySelector(".frame");
  const title = frame.querySelector("title");
  // Said to screen readers all the same; as a tooltip it would cover the values.
  frame.setAttribute("aria-label", title.textContent);
  frame.removeAttribute("aria-labelledby");
  title.remove();
  hover(chart);
}
