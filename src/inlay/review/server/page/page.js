// The review page: shows the state that the server tells, and sends it decisions.

import { StageMap, colourOf } from "./map.js";

const byId = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 900px)");
let state = null;
let current = null;
let busy = false;

const map = new StageMap(byId("map"), (image, id) => {
  const entry = state.classes.find((known) => known.id === id);
  showPicked(image, entry ? entry.name : "no class");
  // On a narrow page the cards are below the map, and the eyes are to stay on the map.
  if (entry) focusCard(id, narrow.matches);
});

async function ask(path, body) {
  const sent = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, sent || {});
  } catch {
    throw new Error("The page has lost its server; start `inlay review` again.");
  }
  const data = await answer.json();
  if (!answer.ok) {
    const error = new Error(data.error);
    error.outdated = answer.status === 409;
    throw error;
  }
  return data;
}

function tell(text, kind = "") {
  byId("news").textContent = text;
  byId("news").className = kind;
}

async function decide(decision, done) {
  if (busy) return;
  busy = true;
  document.body.setAttribute("aria-busy", "true");
  tell("Repairing the model…", "busy");
  try {
    show(await ask("api/decisions", { decision, revision: state.revision }));
    tell(done);
  } catch (error) {
    tell(error.message, "wrong");
    if (error.outdated) show(await ask("api/state"));
  } finally {
    busy = false;
    document.body.removeAttribute("aria-busy");
  }
}

function picture({ image, name }) {
  const element = new Image();
  element.loading = "lazy";
  element.src = `api/images/${image}`;
  element.title = name;
  element.alt = name.split(/[\\/]/).at(-1);
  element.addEventListener("load", () => element.classList.toggle("tiny", element.naturalWidth < 48));
  return element;
}

function showPicked(image, className) {
  const element = byId("picked-image");
  element.src = `api/images/${image}`;
  element.alt = `Image ${image} of ${className}`;
  element.onload = () => element.classList.toggle("tiny", element.naturalWidth < 48);
  byId("picked-name").textContent = `Image ${image}, ${className}`;
  byId("picked").hidden = false;
}

function counted(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

function neighbour(kind, entry) {
  const element = document.createElement("span");
  element.append(`${kind}: `, Object.assign(document.createElement("b"), { textContent: entry.name }));
  return element;
}

function card(entry) {
  const element = byId("card").content.cloneNode(true).querySelector(".card");
  const heading = element.querySelector("h2");
  element.dataset.id = entry.id;
  heading.textContent = entry.name;
  heading.id = `class-${entry.id}`;
  element.setAttribute("aria-labelledby", heading.id);
  element.querySelector(".actions").setAttribute("aria-label", `Decide about ${entry.name}`);
  element.querySelector(".dot").style.background = colourOf(entry.id, dark.matches);
  element.querySelector(".size").textContent =
    (entry.size === null ? "" : counted(entry.size, "image", "images")) +
    (entry.missing ? `, ${entry.missing.toLocaleString("en")} missing` : "");
  const near = element.querySelector(".near");
  if (entry.nearest_old) near.append(neighbour("nearest old class", entry.nearest_old));
  if (entry.nearest_new) near.append(neighbour("nearest new class", entry.nearest_new));
  for (const kind of ["typical", "doubtful"]) {
    element.querySelector(`.${kind}`).append(...entry[kind].map(picture));
  }
  element.querySelector(".no-images").hidden = entry.typical.length > 0;
  element.querySelector(".rows").hidden = !entry.typical.length;
  element.querySelector('[data-action="all"]').disabled = !entry.typical.length;
  element.querySelector('[data-action="split"]').disabled = !entry.may_split;
  for (const button of element.querySelectorAll("[data-action]")) {
    button.addEventListener("click", () => act(button.dataset.action, entry.id));
  }
  element.addEventListener("focusin", () => mark(entry.id));
  return element;
}

function show(next) {
  const hadFocus = byId("classes").contains(document.activeElement);
  const shown = state && state.classes.map((entry) => entry.id);
  state = next;
  document.title = `Review of ${state.run} · inlay`;
  byId("title").textContent = `${state.run}, stage ${state.stage}`;
  const missing = state.images - state.found;
  byId("summary").textContent =
    `${counted(state.classes.length, "class", "classes")} in ${counted(state.images, "image", "images")}` +
    (missing ? `, of which ${missing.toLocaleString("en")} were not found` : "") +
    `; ${counted(state.old.length, "class", "classes")} known before.`;
  byId("undo").disabled = !state.can_undo;
  byId("log-count").textContent = state.log.length;
  byId("log").replaceChildren(
    ...state.log.map((text) => Object.assign(document.createElement("li"), { textContent: text })),
  );
  byId("log-empty").hidden = state.log.length > 0;
  byId("classes").replaceChildren(...state.classes.map(card));
  if (!state.classes.length) byId("classes").append(byId("none-left").content.cloneNode(true));
  const ids = state.classes.map((entry) => entry.id);
  // Parts of a split and classes that an undo brings back are what to look at next.
  const appeared = shown && ids.find((id) => !shown.includes(id));
  const kept = ids.includes(current) ? current : (ids.find((id) => id > current) ?? ids.at(-1) ?? null);
  mark(appeared ?? kept);
  if (hadFocus && current !== null) focusCard(current, appeared === undefined);
}

function mark(id) {
  current = id;
  for (const element of document.querySelectorAll(".card")) {
    element.classList.toggle("current", Number(element.dataset.id) === id);
  }
  map.colour(state.points, state.classes, id);
}

function focusCard(id, quiet) {
  const element = document.querySelector(`.card[data-id="${id}"]`);
  element.focus({ preventScroll: quiet });
  if (!quiet) element.scrollIntoView({ block: "nearest" });
}

function step(by) {
  const ids = state.classes.map((entry) => entry.id);
  const place = Math.min(Math.max(ids.indexOf(current) + by, 0), ids.length - 1);
  if (ids.length) focusCard(ids[place], false);
}

function opened(id) {
  const dialog = byId(id);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "go"), { once: true });
  });
}

const actions = {
  async rename(entry) {
    byId("rename-title").textContent = `Rename ${entry.name}`;
    byId("rename-name").value = entry.name;
    const going = opened("rename");
    byId("rename-name").select();
    if (!(await going)) return;
    const name = byId("rename-name").value.trim();
    await decide({ decision: "rename", id: entry.id, name }, `${entry.name} is now called ${name}.`);
  },
  async merge(entry) {
    byId("merge-title").textContent = `Merge ${entry.name}`;
    const near = [entry.nearest_new, entry.nearest_old].filter(Boolean).map((other) => other.id);
    const rank = (id) => (near.includes(id) ? near.indexOf(id) : near.length);
    const others = [...state.classes.filter((other) => other.id !== entry.id), ...state.old];
    others.sort((a, b) => rank(a.id) - rank(b.id));
    const label = (other) => (state.old.includes(other) ? `${other.name} (old class)` : other.name);
    byId("merge-into").replaceChildren(...others.map((other) => new Option(label(other), other.id)));
    byId("merge-into").selectedIndex = 0;
    if (!(await opened("merge"))) return;
    const into = Number(byId("merge-into").value);
    const name = others.find((other) => other.id === into).name;
    await decide({ decision: "merge", ids: [entry.id], into }, `${entry.name} is now part of ${name}.`);
  },
  async split(entry) {
    if (!entry.may_split) return;
    byId("split-title").textContent = `Split ${entry.name}`;
    byId("split-parts").max = state.most_parts;
    const going = opened("split");
    byId("split-parts").select();
    if (!(await going)) return;
    const parts = Number(byId("split-parts").value);
    await decide({ decision: "split", id: entry.id, parts }, `${entry.name} is now ${parts} classes.`);
  },
  async reject(entry) {
    await decide({ decision: "reject", id: entry.id }, `${entry.name} is rejected; undo brings it back.`);
  },
  async all(entry) {
    if (!entry.typical.length) return;
    byId("all-title").textContent = `Images of ${entry.name}`;
    byId("all-images").replaceChildren();
    const more = async () => {
      const first = byId("all-images").children.length;
      const page = await ask(`api/classes/${entry.id}/images?first=${first}`);
      byId("all-images").append(...page.images.map(picture));
      byId("all-more").hidden = byId("all-images").children.length >= page.all;
    };
    byId("all-more").onclick = () => more().catch((error) => tell(error.message, "wrong"));
    await more();
    await opened("all");
  },
};

function act(name, id) {
  const entry = state.classes.find((known) => known.id === id);
  if (entry && !busy) actions[name](entry).catch((error) => tell(error.message, "wrong"));
}

function undo() {
  if (state.can_undo) decide({ decision: "undo" }, "The latest decision is taken back.");
}

const keys = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  r: () => act("rename", current),
  m: () => act("merge", current),
  s: () => act("split", current),
  x: () => act("reject", current),
  a: () => act("all", current),
  u: undo,
  "?": () => opened("help"),
};

document.addEventListener("keydown", (event) => {
  // A window that has just closed may still have the focus, so what counts is whether one is open.
  const typing = document.querySelector("dialog[open]");
  if (!state || typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const action = Object.hasOwn(keys, event.key) && keys[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});
byId("undo").addEventListener("click", undo);
byId("help-button").addEventListener("click", () => opened("help"));
dark.addEventListener("change", () => state && show(state));

try {
  const [found, plane] = await Promise.all([ask("api/state"), ask("api/map")]);
  map.lay(plane.images, plane.points);
  byId("log-panel").open = !narrow.matches;
  show(found);
} catch (error) {
  byId("summary").textContent = "";
  tell(error.message, "wrong");
}
