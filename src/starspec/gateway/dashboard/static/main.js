// The page: it follows the gateway's feed and passes each view to the parts.

import { showCharts, restyle } from "./charts.js";
import { byId, clock, say } from "./dom.js";
import { KeyNeeded, follow, hasKey, setKey } from "./feed.js";
import { showHubs } from "./hub.js";
import { offerModels, setUpPlayground } from "./playground.js";
import { isLost } from "./stages.js";
import { showStar } from "./star.js";
import { showStrip } from "./strip.js";
import { showEvents, showRequests } from "./tables.js";
import { showTargets } from "./targets.js";

const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(theme) {
  const isDark = theme === "dark" || (theme === "system" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  say(byId("theme"), `Theme: ${theme}`);
  restyle();
}

function setUpTheme() {
  let theme = localStorage.getItem("starspec-theme") ?? "system";
  setTheme(theme);
  dark.addEventListener("change", () => setTheme(theme));
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("starspec-theme", theme);
    setTheme(theme);
  });
}

function showHealth(kind, text) {
  byId("health").className = `chip ${kind}`;
  say(byId("health"), text);
}

function healthOf(star) {
  const ready = star.targets.filter((each) => each.state === "ready").length;
  const plain = star.targets.filter((each) => each.hub && each.hub.state !== "connected").length;
  if (!ready) {
    return ["bad", "no target answers"];
  }
  if (ready < star.targets.length) {
    return ["bad", `${star.targets.length - ready} of ${star.targets.length} targets away`];
  }
  const lost = star.targets.flatMap((each) => each.stages).filter(isLost).length;
  if (lost) {
    return ["bad", `${lost} ${lost === 1 ? "stage" : "stages"} lost`];
  }
  if (plain) {
    return ["bad", plain === ready ? "no hub: decoding plainly" : `${plain} of ${ready} targets without the hub`];
  }
  return star.hubs.every((each) => each.state === "connected") ? ["good", "all is well"] : ["bad", "the hub does not answer"];
}

let last;

function show(star, history) {
  last = [star, history];
  say(byId("model"), star.models.join(", "));
  offerModels(star.models);
  say(byId("version"), star.version);
  document.documentElement.dataset.time = clock(star.time_s);
  showHealth(...healthOf(star));
  showStar(star, history);
  showTargets(star, history);
  showHubs(star);
  showCharts(star, history);
  showStrip(star, history);
  showRequests(star);
  showEvents(star);
}

async function run() {
  byId("key-form").hidden = true;
  try {
    await follow(show, (why) => showHealth("bad", why));
  } catch (error) {
    if (!(error instanceof KeyNeeded)) {
      throw error;
    }
    showHealth("bad", "API key needed");
    say(byId("key-error"), hasKey() ? "That is not the key." : "");
    byId("key-form").hidden = false;
    byId("key").focus();
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  run();
});
addEventListener("resize", () => last && show(...last));
setUpTheme();
setUpPlayground();
run();
