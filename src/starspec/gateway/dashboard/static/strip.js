// What each second of each process was spent on, from its counters: a row scrolls to the left, a column is a second.

import { byId, colour, element, percent, say } from "./dom.js";
import { shownMinutes } from "./charts.js";

const MOST = 8; // targets that get rows
const KINDS = [
  ["verify", "--blue", "verify"],
  ["draft", "--orange", "draft, or wait for it"],
  ["wire", "--purple", "wire (t_c's share of the wait)"],
  ["ahead", "--green", "draft ahead"],
  ["idle", "--idle", "idle"],
];

const rows = new Map();

export function showStrip(star, history) {
  const processes = [
    ...star.hubs.map((hub, index) => [`hub ${index}`, "hub", hubShares(history.hubs[index])]),
    ...star.targets.slice(0, MOST).map((target, index) => [`target ${index}`, target.name, targetShares(history.targets[index])]),
  ];
  if (!rows.size) {
    byId("strip").append(legend());
  }
  for (const [id, name, sharesAt] of processes) {
    if (!rows.has(id)) {
      rows.set(id, makeRow());
      byId("strip").append(rows.get(id).root);
    }
    say(rows.get(id).name, name);
    paint(rows.get(id).canvas, history.times_s, sharesAt, name);
  }
}

const grown = (column, place, seconds) => Math.max(0, (column[place] - column[place - 1]) / seconds);

// Shares of the second that ends at a place: a function of the place and of the seconds since the place before.
function targetShares(columns) {
  return (place, seconds) => {
    const wait = grown(columns.draft_seconds, place, seconds);
    const onWire = columns.wait_seconds[place] ? Math.min(1, columns.t_c_seconds[place] / columns.wait_seconds[place]) : 0;
    return { verify: grown(columns.verify_seconds, place, seconds), draft: wait * (1 - onWire), wire: wait * onWire };
  };
}

function hubShares(columns) {
  return (place, seconds) => ({
    draft: grown(columns.hub_busy_seconds, place, seconds),
    ahead: grown(columns.hub_ahead_seconds, place, seconds),
  });
}

function makeRow() {
  const name = element("span");
  const canvas = element("canvas", { role: "img" });
  return { root: element("div", { class: "strip-row" }, name, canvas), name, canvas };
}

function legend() {
  const keys = KINDS.map(([, variable, words]) => {
    const swatch = element("i");
    swatch.style.background = `var(${variable})`;
    return element("li", {}, swatch, words);
  });
  return element("ul", { class: "legend" }, ...keys);
}

function paint(canvas, times, sharesAt, name) {
  const ratio = devicePixelRatio || 1;
  const width = (canvas.width = Math.round(canvas.clientWidth * ratio));
  const height = (canvas.height = Math.round(canvas.clientHeight * ratio));
  const context = canvas.getContext("2d");
  const end = times[times.length - 1];
  const span = shownMinutes() * 60;
  const x = (time) => Math.round(width * (1 - (end - time) / span));
  let latest = {};
  for (let place = 1; place < times.length; place++) {
    const seconds = times[place] - times[place - 1];
    if (end - times[place] > span || seconds > 5) {
      continue; // not shown, or nobody looked
    }
    latest = sharesAt(place, seconds);
    let y = height;
    for (const [kind, variable] of KINDS) {
      const part = Math.min(y, (latest[kind] || 0) * height);
      if (part > 0) {
        context.fillStyle = colour(variable);
        context.fillRect(x(times[place - 1]), y - part, Math.max(1, x(times[place]) - x(times[place - 1])), part);
        y -= part;
      }
    }
  }
  const said = Object.entries(latest).map(([kind, share]) => `${kind} ${percent(share)}`);
  canvas.setAttribute("aria-label", `${name}, last second: ${said.join(", ") || "idle"}`);
}
