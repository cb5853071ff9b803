// A card for each hub: its load, its queue, its batches, what running ahead brings, and how many targets it can serve.

import { byId, duration, element, known, milliseconds, number, percent, say, svg, tiles } from "./dom.js";

const FACTS = [
  ["hub_load", "load", (m) => percent(m.hub_load)],
  ["hub_waiting", "requests in its queue", (m) => number(m.hub_waiting, 0)],
  ["hub_queue_seconds", "wait in the queue", (m) => milliseconds(m.hub_queue_seconds)],
  ["hub_sequences_per_step", "sequences a step", (m) => number(m.hub_sequences_per_step, 2)],
  ["hub_t_s_seconds", "one draft step", (m) => milliseconds(m.hub_t_s_seconds)],
  ["hub_proposals_per_second", "proposals/s", (m) => number(m.hub_proposals_per_second)],
  ["hub_draft_tokens", "draft tokens in all", (m) => number(m.hub_draft_tokens, 0)],
  ["hits", "ready before asked for", (m) => (m.hub_outcomes ? percent(m.hub_hits / m.hub_outcomes) : "–")],
  ["hub_saved_seconds", "saved by running ahead", (m) => (m.hub_ahead_nodes ? `${number(m.hub_saved_seconds)} s` : "–")],
  ["hub_tags", "sequences held", (m) => number(m.hub_tags, 0)],
  ["hub_n_full", "N_full", (m) => known(m.hub_n_full, 0)],
  ["hub_n_max", "N_max", (m) => known(m.hub_n_max, 0)],
];

const cards = [];

export function showHubs(star) {
  if (!star.hubs.length && !byId("hub-cards").firstElementChild) {
    byId("hub-cards").append(element("p", { class: "none" }, "The gateway was told of no hub (--hub)."));
  }
  while (cards.length < star.hubs.length) {
    cards.push(makeCard());
    byId("hub-cards").append(cards[cards.length - 1].root);
  }
  star.hubs.forEach((hub, index) => showCard(cards[index], hub));
}

function makeCard() {
  const name = element("h3");
  const state = element("p", { class: "chip" });
  const { list: facts, values } = tiles(FACTS);
  const meter = element("div", { class: "meter" });
  return { root: element("article", { class: "card" }, element("header", {}, name, state), facts, meter), name, state, values, meter };
}

function showCard(card, hub) {
  const isThere = hub.state === "connected";
  say(card.name, hub.name);
  card.state.className = `chip ${isThere ? "good" : "bad"}`;
  say(card.state, `${hub.state} for ${duration(hub.for_s)}`);
  for (const [id, , text] of FACTS) {
    say(card.values.get(id), text(hub.metrics));
  }
  card.meter.replaceChildren(isThere ? meter(hub.metrics, Math.max(160, card.root.clientWidth - 30)) : "");
}

// Targets connected, on a scale with N_full (the hub has no idle time left) and N_max (nobody gains beyond it).
function meter(metrics, width) {
  const { hub_targets: targets, hub_n_full: full, hub_n_max: most } = metrics;
  const end = Math.max(targets, full, most, 1) * 1.15;
  const x = (count) => (count / end) * width;
  const said = `${targets} ${targets === 1 ? "target" : "targets"} connected, N_full ${full || "not known"}, N_max ${most || "not known"}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} 62`, role: "img", "aria-label": said });
  picture.append(
    svg("rect", { class: "track", x: 0, y: 22, width, height: 14, rx: 4 }),
    svg("rect", { class: "filled", x: 0, y: 22, width: Math.max(2, x(targets)), height: 14, rx: 4 }),
    text(0, 54, `${targets} ${targets === 1 ? "target" : "targets"} connected`, "start"),
  );
  const areNear = full && most && Math.abs(x(full) - x(most)) < 70;
  for (const [count, name, kind] of [[full, "N_full", ""], [most, "N_max", "limit"]]) {
    if (count) {
      picture.append(svg("line", { class: kind, x1: x(count), x2: x(count), y1: 16, y2: 42 }));
    }
    if (count && !areNear) {
      picture.append(text(x(count), 12, `${name} ${count}`, "middle"));
    }
  }
  if (areNear) {
    const place = Math.min(Math.max(x(full), x(most)) + 4, width);
    picture.append(text(place, 12, `N_full ${full}, N_max ${most}`, "end"));
  }
  return picture;
}

function text(x, y, words, anchor) {
  const made = svg("text", { x, y, class: "soft" }, words);
  made.style.textAnchor = anchor;
  return made;
}
