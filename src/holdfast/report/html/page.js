"use strict";
// Nothing here is needed to read the page: values under the pointer or the arrow keys, buttons that
// copy, and all folds open on paper.

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

// Of a stack that is sampled, what lies between two samples: nothing is missing there.
function between(points, x) {
  const after = points.findIndex((point) => point[0] >= x);
  if (after <= 0) return points.length ? points[after < 0 ? points.length - 1 : 0] : null;
  const [a, b] = [points[after - 1], points[after]];
  return [x, a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0] || 1)];
}

function values(chart) {
  const { x0, x1, y0, y1, log, size, suffix, stacked } = chart.dataset;
  const frame = chart.querySelector(".frame");
  const height = Number(frame.getAttribute("height"));
  const tip = document.createElement("div");
  const cursor = document.createElementNS(SVG, "line");
  let lines = null, place = 0;
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
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

  function show(share) {
    place = Math.min(1, Math.max(0, share));
    lines = lines || curves(chart);
    const find = stacked === undefined ? nearest : between;
    const found = lines.map((line) => ({ name: line.name, at: find(line.points, place * 1000) }))
      .filter((line) => line.at && Math.abs(line.at[0] - place * 1000) < 25);
    const step = Math.round(Number(x0) + place * (x1 - x0));
    // Of a stack the tallest comes first, and each stands on the one after it.
    const rows = found.map((line, i) => {
      const below = stacked !== undefined && i + 1 < found.length ? value(found[i + 1].at[1]) : 0;
      return `${line.name}: ${figure((value(line.at[1]) - below) / size)}${suffix ? " " + suffix : ""}`;
    });
    if (stacked !== undefined) rows.reverse();
    tip.textContent = [`near step ${step}`, ...rows].join("\n");
    tip.hidden = false;
    const box = frame.querySelector(".plot").getBoundingClientRect();
    const left = box.left - chart.getBoundingClientRect().left + place * box.width;
    const room = chart.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, left + 14 > room ? left - tip.offsetWidth - 14 : left + 14)}px`;
    tip.style.top = `${frame.getBoundingClientRect().top - chart.getBoundingClientRect().top + 6}px`;
    cursor.style.display = "";
    cursor.setAttribute("x1", `${place * 100}%`);
    cursor.setAttribute("x2", `${place * 100}%`);
  }

  function hide() {
    tip.hidden = true;
    cursor.style.display = "none";
  }

  frame.addEventListener("pointermove", (event) => {
    const box = frame.querySelector(".plot").getBoundingClientRect();
    show((event.clientX - box.left) / box.width);
  });
  frame.addEventListener("pointerleave", hide);
  frame.addEventListener("blur", hide);
  frame.addEventListener("keydown", (event) => {
    const far = { ArrowLeft: place - 0.01, ArrowRight: place + 0.01, Home: 0, End: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (far === undefined) return;
    event.preventDefault();
    show(far);
  });
}

function button(text, what, from) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "copy";
  made.textContent = text;
  made.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(what());
    } catch {
      // Not allowed here: select it, so that the keyboard can.
      getSelection().selectAllChildren(from);
      if (!document.execCommand("copy")) return;
    }
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = text; }, 1500);
  });
  return made;
}

for (const chart of document.querySelectorAll("figure.chart")) {
  const frame = chart.querySelector(".frame");
  const title = frame.querySelector("title");
  // Said to screen readers all the same; as a tooltip it would cover the values.
  frame.setAttribute("aria-label", `${title.textContent}. Arrow keys show values.`);
  frame.removeAttribute("aria-labelledby");
  frame.setAttribute("tabindex", "0");
  title.remove();
  values(chart);
}

for (const block of document.querySelectorAll("pre.copied")) {
  const around = document.createElement("div"), copies = document.createElement("div");
  around.className = "copying";
  copies.className = "copies";
  block.replaceWith(around);
  around.append(copies, block);
  const added = [...block.querySelectorAll("ins")].map((line) => line.textContent.slice(1)).join("");
  if (added) copies.append(button("Copy new code", () => added, block));
  const all = () => block.textContent.replace(/\n$/, "");
  copies.append(button(block.classList.contains("diff") ? "Copy diff" : "Copy", all, block));
}
for (const code of document.querySelectorAll("code.copied")) {
  code.after(button("Copy", () => code.textContent, code));
}
