// The stages of a target that is cut: their layers, who is attached, and how long a traversal computes and waits there.

import { element, milliseconds, number, percent, say, tiles } from "./dom.js";

const FACTS = [
  ["pipe_fill", "slowest stage busy", (m) => percent(m.pipe_fill)],
  ["pipe_in_flight", "traversals in flight", (m) => number(m.pipe_in_flight, 0)],
  ["pipe_traversals_per_token", "traversals a token", (m) => number(m.pipe_traversals_per_token, 2)],
  ["pipe_ahead_windows", "windows ahead", (m) => number(m.pipe_ahead_windows, 0)],
  ["pipe_stale_windows", "of these, in vain", (m) => number(m.pipe_stale_windows, 0)],
  ["pipe_losses", "times a stage was lost", (m) => number(m.pipe_losses, 0)],
];
const TIMES = ["stage_compute_seconds", "stage_wait_seconds"];

export const isLost = (stage) => stage.index !== null && stage.state !== "attached";

export function makeStages() {
  const { list: facts, values } = tiles(FACTS);
  const body = element("tbody");
  const names = ["stage", "layers", "state", "computing", "waiting"];
  const head = element("thead", {}, element("tr", {}, ...names.map((each) => element("th", { scope: "col" }, each))));
  const caption = element("caption", {}, "Stages, and a traversal's time at each");
  const table = element("table", { class: "stages" }, caption, head, body);
  return { root: element("div", { class: "pipe" }, facts, table), values, body, rows: [] };
}

export function showStages(part, target) {
  part.root.hidden = !target.stages.length;
  for (const [id, , text] of FACTS) {
    say(part.values.get(id), text(target.metrics));
  }
  while (part.rows.length < target.stages.length) {
    part.rows.push(makeRow());
    part.body.append(part.rows[part.rows.length - 1].root);
  }
  while (part.rows.length > target.stages.length) {
    part.rows.pop().root.remove();
  }
  const { pipe_traversals: traversals } = target.metrics;
  const seconds = (stage, id) => (traversals && stage.index !== null ? stage.metrics[id] / traversals : undefined);
  const longest = Math.max(...target.stages.flatMap((stage) => TIMES.map((id) => seconds(stage, id) ?? 0)));
  target.stages.forEach((stage, index) => {
    const row = part.rows[index];
    row.root.dataset.stage = stage.index ?? "spare";
    say(row.name, stage.index === null ? "spare" : `${stage.index}`);
    say(row.layers, stage.layers || "–");
    say(row.state, stage.state);
    row.state.className = isLost(stage) ? "bad" : "";
    say(row.endpoint, stage.endpoint.replace(/^tcp:\/\//, ""));
    TIMES.forEach((id) => {
      say(row.times.get(id).text, milliseconds(seconds(stage, id)));
      row.times.get(id).bar.style.width = longest ? `${((seconds(stage, id) ?? 0) / longest) * 100}%` : "0";
    });
  });
}

function makeRow() {
  const name = element("th", { scope: "row" });
  const layers = element("td");
  const state = element("span");
  const endpoint = element("span", { class: "endpoint" });
  const times = new Map();
  const cells = TIMES.map((id) => {
    times.set(id, { text: element("span", { "data-metric": id }), bar: element("span", { class: `bar ${id}` }) });
    return element("td", {}, times.get(id).text, times.get(id).bar);
  });
  const root = element("tr", {}, name, layers, element("td", {}, state, endpoint), ...cells);
  return { root, name, layers, state, endpoint, times };
}
