// What the gateway tells: the star's state with its history once, then a view twice a second.

const RETRY_MS = 1000;
const SILENCE_MS = 3000; // a gateway that sends nothing for so long is gone
const KEY = "starspec-api-key"; // of this tab only
const SAMPLES = 600;

export class KeyNeeded extends Error {}

export function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

// The data of server-sent events, as texts.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) {
        return;
      }
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) {
          yield part.slice(6);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function get(path, signal) {
  const response = await fetch(path, { headers: headers(), signal, cache: "no-store" });
  if (response.status === 401) {
    throw new KeyNeeded();
  }
  if (!response.ok) {
    throw new Error(`the gateway answers ${response.status}`);
  }
  return response;
}

// Calls show(star, history) for each view and lost(why) when the gateway is gone; until it needs a key.
export async function follow(show, lost) {
  while (true) {
    const ending = new AbortController();
    let timer = setTimeout(() => ending.abort(), SILENCE_MS * 2);
    try {
      const { star, history } = await (await get("dashboard/state", ending.signal)).json();
      show(star, history);
      for await (const event of events(await get("dashboard/events", ending.signal))) {
        clearTimeout(timer);
        timer = setTimeout(() => ending.abort(), SILENCE_MS);
        const view = JSON.parse(event);
        append(history, view);
        show(view, history);
      }
      lost("the gateway has stopped");
    } catch (error) {
      if (error instanceof KeyNeeded) {
        throw error;
      }
      lost("the gateway does not answer");
    } finally {
      clearTimeout(timer);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// The next sample of the history, as the gateway takes it.
function append(history, view) {
  const times = history.times_s;
  if (times.length && view.time_s - times[times.length - 1] < 0.9) {
    return;
  }
  times.push(view.time_s);
  for (const kind of ["targets", "hubs"]) {
    view[kind].forEach((each, index) => {
      for (const [name, column] of Object.entries(history[kind][index] ?? {})) {
        column.push(each.metrics[name] ?? null);
        column.splice(0, column.length - SAMPLES);
      }
    });
  }
  times.splice(0, times.length - SAMPLES);
}
