// Elements and numbers. Everything that a peer says is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A list of facts, each [id, label, ...]. Returns it, and the element of each value by its id.
export function tiles(facts) {
  const values = new Map(facts.map(([id]) => [id, element("dd", { "data-metric": id })]));
  const pairs = facts.map(([id, label]) => element("div", {}, element("dt", {}, label), values.get(id)));
  return { list: element("dl", { class: "tiles" }, ...pairs), values };
}

// Sets a text only if it changes, so that screen readers and selections stay where they are.
export function say(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export function number(value, digits = 1) {
  return value === undefined || value === null || Number.isNaN(value) ? "–" : value.toFixed(digits);
}

export const known = (value, digits = 1) => (value ? number(value, digits) : "–"); // 0 = not known
export const percent = (share) => (share === undefined ? "–" : `${(share * 100).toFixed(0)}%`);
export const milliseconds = (seconds) => (seconds === undefined ? "–" : `${(seconds * 1e3).toFixed(1)} ms`);
export const clock = (unixS) => new Date(unixS * 1e3).toLocaleTimeString([], { hour12: false });

export function duration(seconds) {
  if (seconds < 90) {
    return `${seconds.toFixed(0)} s`;
  }
  return seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const LINE_COLOURS = ["--blue", "--orange", "--green", "--purple", "--red", "--grey"];
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const lineColour = (index) => colour(LINE_COLOURS[index % LINE_COLOURS.length]);
