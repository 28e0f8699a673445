"use strict";
// Values under the pointer, or chosen with the arrow keys, are written below each chart. Nothing else needs this script.
for (const chart of document.querySelectorAll(".chart")) {
  const places = chart.dataset.x.split(";").map(Number), labels = chart.dataset.labels.split(";");
  const svg = chart.querySelector("svg"), cursor = chart.querySelector(".cursor"), output = chart.querySelector("output");
  const lines = [...chart.querySelectorAll(".line[data-values]")].map((line) =>
    ({ name: line.dataset.name, number: line.dataset.line, values: line.dataset.values.split(";") }));
  let at = -1, chosen;
  // Of many runs, the one under the pointer, in the picture or in the legend, stands out.
  const choose = (number) => {
    chosen = number;
    chart.classList.toggle("chosen", number !== undefined);
    for (const one of chart.querySelectorAll("[data-line]")) one.classList.toggle("lit", one.dataset.line === number);
  };
  for (const item of chart.querySelectorAll("li[data-line]")) {
    item.addEventListener("pointerenter", () => { choose(item.dataset.line); output.textContent = item.title; });
    item.addEventListener("pointerleave", () => hide());
  }
  const shown = (known) => {
    if (chosen !== undefined) return known.filter((line) => line.number === chosen);
    if (known.length <= 6) return known;
    const by = [...known].sort((one, other) => parseFloat(one.values[at]) - parseFloat(other.values[at]));
    return [by[0], by[by.length - 1]];
  };
  const show = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    cursor.setAttribute("d", `M${places[at]} 10V176`);
    const known = shown(lines.filter((line) => line.values[at]));
    output.textContent = [labels[at], ...known.map((line) =>
      lines.length > 1 ? `${line.name} ${line.values[at]}` : line.values[at])].join(" · ");
  };
  const hide = () => { at = -1; choose(); cursor.setAttribute("d", ""); output.textContent = ""; };
  svg.addEventListener("pointermove", (event) => {
    if (chosen !== event.target.dataset.line) choose(event.target.dataset.line);
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    show(places.reduce((best, place, index) => Math.abs(place - x) < Math.abs(places[best] - x) ? index : best, 0));
  });
  svg.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { show(at + step); event.preventDefault(); }
  });
}
// A printed page shows everything.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
