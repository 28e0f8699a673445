"use strict";
// Values under the pointer, or chosen with the arrow keys, are written below each chart. Nothing else needs this script.
for (const chart of document.querySelectorAll(".chart")) {
  const places = chart.dataset.x.split(";").map(Number), labels = chart.dataset.labels.split(";");
  const svg = chart.querySelector("svg"), cursor = chart.querySelector(".cursor"), output = chart.querySelector("output");
  const lines = [...chart.querySelectorAll(".line[data-values]")].map((line) =>
    ({ name: line.dataset.name, values: line.dataset.values.split(";") }));
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    cursor.setAttribute("d", `M${places[at]} 10V176`);
    const known = lines.filter((line) => line.values[at]);
    output.textContent = [labels[at], ...known.map((line) =>
      lines.length > 1 ? `${line.name} ${line.values[at]}` : line.values[at])].join(" · ");
  };
  const hide = () => { at = -1; cursor.setAttribute("d", ""); output.textContent = ""; };
  svg.addEventListener("pointermove", (event) => {
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
