// One prompt, answered with speculation and without: the same tokens, at two speeds.

import { byId, element, number, percent, say } from "./dom.js";
import { events, headers } from "./feed.js";

let stopping = null;
let offered = "";

export function setUpPlayground() {
  byId("play").addEventListener("submit", (event) => {
    event.preventDefault();
    runBoth(byId("play-model").value || undefined); // before the first view: the gateway's first
  });
  byId("stop").addEventListener("click", () => stopping?.abort());
}

// One of several can be chosen.
export function offerModels(models) {
  if (models.join() !== offered) {
    offered = models.join();
    byId("play-model").replaceChildren(...models.map((each) => element("option", { value: each }, each)));
    byId("play-model").parentElement.hidden = models.length < 2;
  }
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
    const prompt = await tokens(model);
    const on = await answer(model, prompt, true, "on");
    tell("", "Without …");
    const off = await answer(model, prompt, false, "off");
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

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal: stopping.signal,
  });
  if (!response.ok) {
    throw new Error((await response.json()).error?.message ?? `the gateway answers ${response.status}`);
  }
  return response;
}

// The prompt's tokens: only text completions tell where each token of the answer begins.
async function tokens(model) {
  const prompt = byId("prompt").value;
  const asked = byId("mode").value === "chat" ? { messages: [{ role: "user", content: prompt }] } : { prompt };
  return (await (await post("tokenize", { model, ...asked })).json()).tokens;
}

async function answer(model, prompt, isSpeculative, side) {
  const body = {
    model,
    prompt,
    max_tokens: Number(byId("tokens").value),
    temperature: Number(byId("temperature").value),
    seed: Number(byId("seed").value),
    stream: true,
    logprobs: 0,
    return_token_ids: true,
    ...(isSpeculative ? {} : { speculative: false }),
  };
  const response = await post("v1/completions", body);
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
    this.characters = [];
    this.tokenIds = [];
    this.areDrafts = []; // by token
    this.offsets = []; // by token: where it begins; those of the last tokens come later than the tokens
    this.numShown = 0;
    this.metrics = null;
  }

  take(chunk) {
    if (chunk.error) {
      throw new Error(chunk.error.message);
    }
    this.metrics = chunk.metrics ?? this.metrics;
    const [choice] = chunk.choices ?? [];
    const ids = choice?.token_ids ?? [];
    this.tokenIds.push(...ids);
    this.areDrafts.push(...ids.map((_, index) => index < ids.length - 1));
    this.offsets.push(...(choice?.logprobs?.text_offset ?? []));
    this.characters.push(...(choice?.text ?? ""));
    this.settleLast(ids.length > 0);
    this.show(this.offsets.length - 1);
  }

  // The last round may end within its drafts: then its last token is a draft, too.
  settleLast(hasTokens) {
    const accepted = this.metrics?.speculative_decoding.num_accepted_draft_tokens ?? 0;
    if (hasTokens && accepted > this.areDrafts.filter(Boolean).length) {
      this.areDrafts[this.areDrafts.length - 1] = true;
    }
  }

  show(end) {
    for (; this.numShown < end; this.numShown++) {
      const text = this.characters.slice(this.offsets[this.numShown], this.offsets[this.numShown + 1]).join("");
      this.place.append(this.areDrafts[this.numShown] ? element("mark", { class: "accepted" }, text) : text);
    }
  }

  finish() {
    this.show(this.offsets.length);
  }
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
