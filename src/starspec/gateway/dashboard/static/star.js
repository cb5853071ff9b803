// The headline numbers, and the star: gateway, targets with their stages, and hub, with dots that move where something
// passes.

import { byId, element, number, percent, say, svg } from "./dom.js";
import { isLost } from "./stages.js";
import { estimate } from "./targets.js";

const MOST = 12; // targets that are drawn
const ROW = 74;
const HEIGHT = 50;
const STAGE_HEIGHT = 20; // of a target's stages, which hang below it
const TILES = [
  ["speed", "tokens/s now"],
  ["plain", "without drafts, about"],
  ["gain", "what drafts give now"],
  ["running", "requests running"],
  ["waiting", "requests waiting"],
  ["load", "hub load"],
];

const tiles = new Map();
let drawn = null; // the parts of the picture, and what it was drawn for

const chainOf = (target) => target.stages.filter((each) => each.index !== null);

export function showStar(star, history) {
  showHeadline(star, history);
  const width = byId("star-picture").clientWidth;
  const targets = star.targets.slice(0, MOST);
  const numStages = targets.map((each) => chainOf(each).length);
  const shape = JSON.stringify([width, targets.map((each) => each.name), numStages, star.hubs.length]);
  if (drawn?.shape !== shape) {
    drawn = { shape, ...draw(width, numStages, star.hubs.length) };
    byId("star-picture").replaceChildren(drawn.picture);
  }
  update(star, targets);
}

function showHeadline(star, history) {
  if (!tiles.size) {
    for (const [id, name] of TILES) {
      tiles.set(id, element("span", { class: "value", id: `now-${id}` }));
      byId("headline").append(element("div", {}, element("span", { class: "name" }, name), tiles.get(id)));
    }
    byId("headline").firstElementChild.className = "first";
  }
  const sum = (name) => star.targets.reduce((total, each) => total + (each.metrics[name] ?? 0), 0);
  const estimates = star.targets.map((_, index) => estimate(history, index));
  const speed = sum("tokens_per_second");
  const plain = estimates.every((each) => each !== null) ? estimates.reduce((a, b) => a + b, 0) : null;
  say(tiles.get("speed"), number(speed));
  say(tiles.get("plain"), plain ? number(plain) : "–");
  say(tiles.get("gain"), plain && speed ? `${number(speed / plain, 2)}×` : "–");
  say(tiles.get("running"), number(sum("num_requests_running"), 0));
  say(tiles.get("waiting"), number(sum("num_requests_waiting"), 0));
  say(tiles.get("load"), percent(star.hubs[0]?.metrics.hub_load));
}

// Args: numStages: of each target.
function draw(width, numStages, numHubs) {
  const rowHeight = ROW + (numStages.some(Boolean) ? STAGE_HEIGHT : 0);
  const height = Math.max(1, numStages.length) * rowHeight;
  const nodeWidth = Math.min(170, width * 0.28);
  const columns = [nodeWidth / 2 + 2, width / 2, width - nodeWidth / 2 - 2];
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  const title = svg("title");
  picture.append(title);
  const gateway = node(columns[0], height / 2, nodeWidth);
  const hub = numHubs ? node(columns[2], height / 2, nodeWidth) : null;
  const rows = numStages.map((num, index) => {
    const y = rowHeight * index + ROW / 2;
    const half = nodeWidth / 2;
    const requests = link("request", columns[1] - half, y, columns[0] + half, height / 2, 0);
    const proposals = hub && link("proposal", columns[2] - half, height / 2, columns[1] + half, y, -6);
    const verdicts = hub && link("verdict", columns[1] + half, y, columns[2] - half, height / 2, 6);
    const links = [requests, proposals, verdicts].filter(Boolean);
    picture.append(...links.flatMap((each) => [each.line, each.dots]));
    const stages = stagesBelow(columns[1] - half, y + HEIGHT / 2, nodeWidth, num);
    return { requests, proposals, verdicts, node: node(columns[1], y, nodeWidth), stages, counts: null };
  });
  for (const each of [gateway, ...rows.map((row) => row.node), hub].filter(Boolean)) {
    picture.append(each.box, each.name, each.fact);
  }
  picture.append(...rows.flatMap((each) => each.stages).flatMap((each) => [each.box, each.layers]));
  return { picture, title, gateway, hub, rows };
}

function node(x, y, width) {
  return {
    box: svg("rect", { class: "node", x: x - width / 2, y: y - HEIGHT / 2, width, height: HEIGHT, rx: 8 }),
    name: svg("text", { x, y: y - 4 }),
    fact: svg("text", { x, y: y + 14, class: "soft" }),
    most: Math.floor((width - 8) / 8), // characters that fit
  };
}

function stagesBelow(left, y, width, num) {
  const each = width / num;
  return Array.from({ length: num }, (_, index) => {
    const x = left + index * each;
    return {
      box: svg("rect", { class: "node", x: x + 1, y: y + 2, width: each - 2, height: STAGE_HEIGHT - 4, rx: 3 }),
      layers: svg("text", { x: x + each / 2, y: y + 14, class: "soft" }),
      most: Math.floor((each - 4) / 7),
    };
  });
}

function link(kind, fromX, fromY, toX, toY, shift) {
  const middle = (fromX + toX) / 2;
  const d = `M${fromX} ${fromY + shift} C${middle} ${fromY + shift} ${middle} ${toY + shift} ${toX} ${toY + shift}`;
  return { line: svg("path", { class: "link", d }), dots: svg("path", { class: `flow ${kind} still`, d }) };
}

function update(star, targets) {
  label(drawn.gateway, "gateway", star.is_ready ? "answers" : "no target", star.is_ready);
  const hub = star.hubs[0];
  if (hub) {
    const isThere = hub.state === "connected";
    label(drawn.hub, isThere ? hub.name : "hub", isThere ? `load ${percent(hub.metrics.hub_load)}` : hub.state, isThere);
  }
  targets.forEach((target, index) => updateRow(drawn.rows[index], target, hub, star.time_s));
  const states = targets.map((each) => `${each.name} ${each.state}${stagesOf(each)}`).join(", ");
  const left = star.targets.length - targets.length;
  const rest = left ? ` and ${left} more targets` : "";
  say(drawn.title, `gateway, ${states}${rest}${hub ? `, hub ${hub.state}` : ""}`);
}

function stagesOf(target) {
  const said = chainOf(target).map((each) => `layers ${each.layers} ${each.state}`).join(", ");
  return said && ` (${said})`;
}

function updateRow(row, target, hub, now) {
  const isReady = target.state === "ready";
  const speed = `${number(target.metrics.tokens_per_second)} tok/s`;
  label(row.node, target.name, isReady ? speed : target.state, isReady);
  row.requests.line.classList.toggle("bad", !isReady);
  chainOf(target).forEach((stage, index) => {
    const { box, layers, most } = row.stages[index];
    say(layers, stage.layers.length > most ? "" : stage.layers);
    box.setAttribute("class", `node ${isLost(stage) ? "bad" : "good"}`);
  });
  const atHub = hub?.targets[target.status?.target_id] ?? {}; // the hub knows one of a name
  const counts = {
    requests: target.metrics.generation_tokens,
    proposals: atHub.hub_target_proposals,
    verdicts: atHub.hub_target_verdicts,
  };
  const hasDrafts = isReady && target.hub?.state === "connected";
  for (const [name, count] of Object.entries(counts)) {
    if (!row[name]) {
      continue;
    }
    if (name !== "requests") {
      row[name].line.classList.toggle("bad", !hasDrafts);
    }
    flow(row[name], name === "requests" ? isReady : hasDrafts, count, now);
  }
}

// Dots move as fast as the count grows; the hub tells its counts every half second, so a change is kept for a while.
function flow(part, isAlive, count, now) {
  const grown = count - part.count;
  if (grown > 0) {
    part.rate = grown / Math.max(0.4, now - part.since);
    part.moves = now + 1.6;
  }
  if (part.count === undefined || grown !== 0) {
    part.count = count;
    part.since = now;
  }
  const moves = isAlive && now < (part.moves ?? 0);
  part.dots.classList.toggle("still", !moves);
  if (moves) {
    const seconds = Math.min(2, Math.max(0.15, 8 / part.rate)).toFixed(1);
    if (part.dots.style.animationDuration !== `${seconds}s`) {
      part.dots.style.animationDuration = `${seconds}s`; // a new duration starts the animation anew
    }
  }
}

function label(part, name, fact, isGood) {
  const fits = (text) => (text.length > part.most ? `${text.slice(0, part.most - 1)}…` : text);
  say(part.name, fits(name));
  say(part.fact, fits(fact));
  part.box.setAttribute("class", `node ${isGood ? "good" : "bad"}`);
}
