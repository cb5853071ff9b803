// A card for each target: its speed beside the plain estimate, its stages if it is cut, and what becomes of drafts.

import { LINE_COLOURS, byId, duration, element, known, milliseconds, number, percent, say, tiles } from "./dom.js";
import { makeStages, showStages } from "./stages.js";

const RECENT = 5; // samples
const FACTS = [
  ["tokens_per_second", "tokens/s", (m) => number(m.tokens_per_second)],
  ["estimate", "without drafts, about", (m, plain) => (plain ? number(plain) : "–")],
  ["gain", "drafts give now", (m, plain) => (plain && m.tokens_per_second ? `${number(m.tokens_per_second / plain, 2)}×` : "–")],
  ["plain_tokens_per_second", "one sequence, no drafts", (m) => known(m.plain_tokens_per_second)],
  ["block_efficiency", "tokens a forward", (m) => number(m.block_efficiency, 2)],
  ["acceptance_length", "acceptance length", (m) => number(m.acceptance_length, 2)],
  ["acceptance_rate", "accepted drafts", (m) => percent(m.acceptance_rate)],
  ["wait_seconds", "wait for the hub", (m) => milliseconds(m.wait_seconds)],
  ["t_v_seconds", "one verification", (m) => milliseconds(m.t_v_seconds)],
  ["generation_tokens", "tokens in all", (m) => number(m.generation_tokens, 0)],
  ["num_requests_running", "running", (m) => number(m.num_requests_running, 0)],
  ["num_requests_waiting", "waiting", (m) => number(m.num_requests_waiting, 0)],
];

const cards = [];

// Tokens a second without drafts: that of one sequence, times those that ran lately; null = not measured.
export function estimateAt(columns, end) {
  const plain = columns?.plain_tokens_per_second[end - 1];
  if (!plain) {
    return null;
  }
  const running = columns.num_requests_running.slice(Math.max(0, end - RECENT), end).map((each) => each ?? 0);
  return (plain * running.reduce((a, b) => a + b, 0)) / running.length;
}

export const estimate = (history, index) => estimateAt(history.targets[index], history.times_s.length);

export function showTargets(star, history) {
  while (cards.length < star.targets.length) {
    cards.push(makeCard(cards.length));
    byId("target-cards").append(cards[cards.length - 1].root);
  }
  star.targets.forEach((target, index) => showCard(cards[index], target, estimate(history, index)));
}

function makeCard(index) {
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = `var(${LINE_COLOURS[index % LINE_COLOURS.length]})`;
  const name = element("span");
  const state = element("p", { class: "chip" });
  const { list: facts, values } = tiles(FACTS);
  const positions = bars("Accepted at each position", "positions");
  const lengths = bars("Draft lengths chosen", "lengths");
  const stages = makeStages();
  const root = element(
    "article",
    { class: "card" },
    element("header", {}, element("h3", {}, swatch, name), state),
    facts,
    stages.root,
    element("div", { class: "plots" }, positions.table, lengths.table),
  );
  return { root, name, state, values, stages, positions, lengths };
}

function showCard(card, target, plain) {
  card.root.dataset.target = target.name;
  say(card.name, target.name);
  const [kind, state] = stateOf(target);
  card.state.className = `chip ${kind}`;
  say(card.state, state);
  for (const [id, , text] of FACTS) {
    say(card.values.get(id), text(target.metrics, plain));
  }
  showStages(card.stages, target);
  const stats = target.status?.stats;
  const drafts = target.metrics.spec_decode_num_drafts;
  const accepted = stats?.acceptance?.num_accepted_tokens_per_pos ?? [];
  showBars(card.positions, accepted.map((count, index) => [`${index + 1}`, count / drafts]));
  const chosen = stats?.lengths?.num_by_length ?? [];
  const all = chosen.reduce((a, b) => a + b, 0);
  showBars(card.lengths, chosen.map((count, index) => [`${index}`, count / all]));
}

function stateOf(target) {
  const since = `for ${duration(target.for_s)}`;
  if (target.state !== "ready") {
    return ["bad", `${target.state} ${since}`];
  }
  if (!target.hub) {
    return ["", "ready, no hub"];
  }
  const drafts = { connected: "ready, with drafts", lost: "hub lost: plain", connecting: "looks for the hub: plain" };
  return [target.hub.state === "connected" ? "good" : "bad", drafts[target.hub.state]];
}

function bars(caption, kind) {
  const body = element("tbody");
  return { table: element("table", { class: `bars ${kind}` }, element("caption", {}, caption), body), body, rows: [] };
}

function showBars(part, shares) {
  while (part.rows.length < shares.length) {
    const row = { name: element("th", { scope: "row" }), bar: element("span", { class: "bar" }), value: element("td") };
    part.body.append(element("tr", {}, row.name, element("td", {}, row.bar), row.value));
    part.rows.push(row);
  }
  while (part.rows.length > shares.length) {
    part.rows.pop();
    part.body.lastElementChild.remove();
  }
  shares.forEach(([name, share], index) => {
    say(part.rows[index].name, name);
    say(part.rows[index].value, percent(share));
    part.rows[index].bar.style.width = `${share * 100}%`;
  });
}
