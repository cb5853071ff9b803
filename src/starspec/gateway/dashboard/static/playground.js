// One prompt, answered with speculation and without: the same tokens, at two speeds.

import { byId, element, number, percent, say } from "./dom.js";
import { events, headers } from "./feed.js";

let stopping = null;

export function setUpPlayground(star) {
  byId("play").addEventListener("submit", (event) => {
    event.preventDefault();
    runBoth(star()?.model);
  });
  byId("stop").addEventListener("click", () => stopping?.abort());
}

async function runBoth(model) {
  stopping = new AbortController();
  byId("run").disabled = true;
  byId("stop").disabled = false;
  for (const id of ["on-text", "off-text", "on-facts", "off-facts"]) {
    byId(id).replaceChildren();
  }
  tell("", "With speculation …");
  try {
    const on = await answer(model, true, "on");
    tell("", "Without …");
    const off = await answer(model, false, "off");
    compare(on, off);
  } catch (error) {
    tell("bad", stopping.signal.aborted ? "Stopped." : error.message);
  } finally {
    byId("run").disabled = false;
    byId("stop").disabled = true;
  }
}

function tell(kind, text) {
  byId("verdict").className = kind;
  say(byId("verdict"), text);
}

function bodyOf(model, isSpeculative) {
  const isChat = byId("mode").value === "chat";
  const prompt = byId("prompt").value;
  return {
    model,
    ...(isChat ? { messages: [{ role: "user", content: prompt }], logprobs: true } : { prompt, logprobs: 0 }),
    max_tokens: Number(byId("tokens").value),
    temperature: Number(byId("temperature").value),
    seed: Number(byId("seed").value),
    stream: true,
    return_token_ids: true,
    ...(isSpeculative ? {} : { speculative: false }),
  };
}

async function answer(model, isSpeculative, side) {
  const path = byId("mode").value === "chat" ? "v1/chat/completions" : "v1/completions";
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(bodyOf(model, isSpeculative)),
    signal: stopping.signal,
  });
  if (!response.ok) {
    throw new Error((await response.json()).error?.message ?? `the gateway answers ${response.status}`);
  }
  const shown = new Shown(byId(`${side}-text`));
  for await (const event of events(response)) {
    if (event !== "[DONE]") {
      shown.take(JSON.parse(event));
    }
  }
  shown.finish();
  say(byId(`${side}-facts`), factsOf(shown));
  return shown;
}

// An answer as it grows. A chunk has the tokens of one round: accepted drafts, and behind them the target's own token.
class Shown {
  constructor(place) {
    this.place = place;
    this.tokenIds = [];
    this.areDrafts = []; // by token
    this.bytes = []; // by token
    this.numShown = 0;
    this.metrics = null;
    this.decoder = new TextDecoder();
  }

  take(chunk) {
    if (chunk.error) {
      throw new Error(chunk.error.message);
    }
    this.metrics = chunk.metrics ?? this.metrics;
    const [choice] = chunk.choices ?? [];
    const ids = choice?.token_ids ?? [];
    ids.forEach((id, index) => {
      this.tokenIds.push(id);
      this.areDrafts.push(index < ids.length - 1);
    });
    this.bytes.push(...bytesOf(choice?.logprobs));
    this.settleLast(ids.length > 0);
    this.show();
  }

  // The last round may end within its drafts: then its last token is a draft, too.
  settleLast(hasTokens) {
    const accepted = this.metrics?.speculative_decoding.num_accepted_draft_tokens ?? 0;
    if (hasTokens && accepted > this.areDrafts.filter(Boolean).length) {
      this.areDrafts[this.areDrafts.length - 1] = true;
    }
  }

  show() {
    for (; this.numShown < this.bytes.length; this.numShown++) {
      const text = this.decoder.decode(this.bytes[this.numShown], { stream: true });
      this.place.append(this.areDrafts[this.numShown] ? element("mark", { class: "accepted" }, text) : text);
    }
  }

  finish() {
    this.place.append(this.decoder.decode());
  }
}

function bytesOf(logprobs) {
  if (!logprobs) {
    return [];
  }
  const encoder = new TextEncoder();
  return logprobs.content
    ? logprobs.content.map((each) => new Uint8Array(each.bytes))
    : logprobs.tokens.map((text) => spelled(text) ?? encoder.encode(text));
}

// OpenAI's `bytes:\xe2\x82` of a token that is not whole characters.
function spelled(text) {
  if (!/^bytes:(\\x[0-9a-f]{2})+$/.test(text)) {
    return null;
  }
  return new Uint8Array(text.slice(6).match(/[0-9a-f]{2}/g).map((each) => parseInt(each, 16)));
}

function factsOf(shown) {
  const speculative = shown.metrics.speculative_decoding;
  const drafts = speculative.num_spec_steps
    ? `, ${percent(speculative.draft_acceptance_rate)} of ${speculative.num_draft_tokens} drafts accepted, acceptance length ${number(speculative.mean_acceptance_length, 2)}`
    : ", no drafts";
  return `${shown.tokenIds.length} tokens, ${number(shown.metrics.tokens_per_second)} tokens/s${drafts}`;
}

function compare(on, off) {
  const differs = on.tokenIds.findIndex((id, index) => id !== off.tokenIds[index]);
  const isSame = differs < 0 && on.tokenIds.length === off.tokenIds.length;
  const ratio = on.metrics.tokens_per_second / off.metrics.tokens_per_second;
  const speed = Number.isFinite(ratio) ? `; ${number(ratio, 2)}× as fast` : "";
  if (isSame) {
    tell("good", `Identical, all ${on.tokenIds.length} tokens${speed}`);
  } else {
    const place = differs < 0 ? Math.min(on.tokenIds.length, off.tokenIds.length) : differs;
    tell("bad", `Different from token ${place + 1} on${speed}`);
  }
}
