// Lines over the last minutes, drawn by uPlot.

import { byId, colour, lineColour, number, say, element } from "./dom.js";
import { estimateAt } from "./targets.js";

const MOST = 6; // targets that get lines
const HEIGHT = 190;
const EVERY_MS = 900; // the history grows once a second

let minutes = 2;
let last = null;
let drawnMs = 0;
const charts = new Map();

const CHARTS = {
  "chart-speed": { unit: "tokens/s", series: speedSeries },
  "chart-waits": { unit: "ms", series: waitSeries },
  "chart-hub": { unit: "% or requests", series: hubSeries },
};

for (const button of document.querySelectorAll("[data-minutes]")) {
  button.addEventListener("click", () => {
    minutes = Number(button.dataset.minutes);
    for (const each of document.querySelectorAll("[data-minutes]")) {
      each.setAttribute("aria-pressed", String(each === button));
    }
    drawnMs = 0;
    if (last) {
      showCharts(...last);
    }
  });
}

export const shownMinutes = () => minutes;

export function showCharts(star, history) {
  last = [star, history];
  if (performance.now() - drawnMs < EVERY_MS) {
    return;
  }
  drawnMs = performance.now();
  for (const [id, chart] of Object.entries(CHARTS)) {
    showChart(id, chart.unit, history.times_s, chart.series(star, history));
  }
}

// After a change of colours.
export function restyle() {
  for (const chart of charts.values()) {
    chart.plot.destroy();
  }
  charts.clear();
  drawnMs = 0;
  if (last) {
    showCharts(...last);
  }
}

function speedSeries(star, history) {
  return star.targets.slice(0, MOST).flatMap((target, index) => {
    const columns = history.targets[index];
    const plain = history.times_s.map((_, place) => estimateAt(columns, place + 1));
    return [
      { label: target.name, color: lineColour(index), values: columns.tokens_per_second },
      { label: `${target.name} plain`, color: lineColour(index), dash: [5, 4], values: plain },
    ];
  });
}

function waitSeries(star, history) {
  return star.targets.slice(0, MOST).flatMap((target, index) => {
    const columns = history.targets[index];
    return [
      { label: `${target.name} verify`, color: lineColour(index), values: scaled(columns.t_v_seconds, 1e3) },
      { label: `${target.name} wait`, color: lineColour(index), dash: [5, 4], values: scaled(columns.wait_seconds, 1e3) },
    ];
  });
}

function hubSeries(star, history) {
  const columns = history.hubs[0];
  return columns
    ? [
        { label: "load, %", color: colour("--blue"), values: scaled(columns.hub_load, 100) },
        { label: "requests that wait", color: colour("--orange"), dash: [5, 4], values: columns.hub_waiting },
      ]
    : [];
}

const scaled = (column, factor) => column.map((each) => (each === null ? null : each * factor));

function showChart(id, unit, times, series) {
  const place = byId(id);
  const width = place.clientWidth;
  const labels = JSON.stringify(series.map((each) => each.label));
  let chart = charts.get(id);
  if (chart?.labels !== labels) {
    chart?.plot.destroy();
    place.replaceChildren();
    chart = { labels, plot: makePlot(place, width, unit, series) };
    charts.set(id, chart);
  }
  if (chart.plot.width !== width) {
    chart.plot.setSize({ width, height: HEIGHT });
  }
  const end = times[times.length - 1] ?? 0;
  chart.plot.setData([times, ...series.map((each) => each.values)], false);
  chart.plot.batch(() => {
    chart.plot.setScale("x", { min: end - minutes * 60, max: end });
  });
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", series.map((each) => `${each.label} ${number(each.values[each.values.length - 1])}`).join(", "));
}

function makePlot(place, width, unit, series) {
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
  const font = '12px system-ui, "DejaVu Sans", sans-serif';
  const options = {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.1)] } },
    axes: [
      { ...axis, font, size: 28, space: 80, values: (_, ticks) => ticks.map((each) => shortClock(each)) },
      { ...axis, font, label: unit, labelFont: font, labelSize: 18, size: 44 },
    ],
    series: [{}, ...series.map((each) => ({ stroke: each.color, width: 1.8, dash: each.dash, points: { show: false } }))],
  };
  const plot = new uPlot(options, [[0]], place);
  const keys = series.filter((each) => !each.dash || series.length <= 2);
  place.append(element("ul", { class: "legend" }, ...keys.map(key)));
  return plot;
}

function key(each) {
  const swatch = element("i");
  swatch.style.background = each.color;
  const made = element("li", {}, swatch);
  const name = element("span");
  say(name, each.label);
  made.append(name);
  return made;
}

const shortClock = (unixS) =>
  new Date(unixS * 1e3).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit", second: "2-digit" });
