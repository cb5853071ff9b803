// The requests that have ended, and the events; the newest first.

import { byId, clock, element, number } from "./dom.js";

let shownRequests = "";
let shownEvents = "";

export function showRequests(star) {
  byId("text-column").hidden = !star.shows_text;
  const ids = star.requests.map((each) => each.request_id).join();
  if (ids === shownRequests && byId("request-rows").firstElementChild) {
    return;
  }
  shownRequests = ids;
  const rows = star.requests.map((each) => requestRow(each, star.shows_text));
  const none = element("tr", {}, element("td", { colspan: 9, class: "none" }, "None has ended yet."));
  byId("request-rows").replaceChildren(...(rows.length ? rows : [none]));
}

function requestRow(request, showsText) {
  const cells = [
    [clock(request.ended_s), ""],
    [request.target, ""],
    [String(request.num_prompt_tokens), "number"],
    [String(request.num_tokens), "number"],
    [number(request.tokens_per_s), "number"],
    [request.first_token_ms === null ? "–" : `${request.first_token_ms.toFixed(0)} ms`, "number"],
    [request.accepted.some(Boolean) ? number(request.acceptance_length, 2) : "no drafts", "number"],
    [request.accepted.some(Boolean) ? request.accepted.join(" · ") : "–", ""],
    ...(showsText ? [[request.text ?? "", "text"]] : []),
  ];
  return element("tr", {}, ...cells.map(([text, kind]) => element("td", { class: kind }, text)));
}

export function showEvents(star) {
  const all = JSON.stringify(star.events);
  if (all === shownEvents) {
    return;
  }
  const list = byId("event-list");
  const known = new Set([...list.children].map((each) => each.dataset.event));
  const fresh = star.events.filter((each) => !known.has(identity(each)));
  list.prepend(...fresh.map(eventLine));
  while (list.children.length > star.events.length) {
    list.lastElementChild.remove();
  }
  shownEvents = all;
}

const identity = (event) => `${event.time_s} ${event.text}`;

function eventLine(event) {
  const when = element("time", { datetime: new Date(event.time_s * 1e3).toISOString() }, clock(event.time_s));
  return element("li", { class: event.kind, "data-event": identity(event) }, when, element("span", {}, event.text));
}
