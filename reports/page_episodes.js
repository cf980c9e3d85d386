// Episodes as cards: found, filtered, sorted, opened; and linked by the part of the address after the #.

const CHUNK = 30;
const OUTCOMES = { won: "won", lost: "ended without success", max_steps: "out of turns", context: "context full", error: "environment failed" };
const SORTS = {
  newest: ["newest first", (a, b) => b.iteration - a.iteration],
  oldest: ["oldest first", (a, b) => a.iteration - b.iteration],
  longest: ["most turns first", (a, b) => b.turns.length - a.turns.length],
  reward: ["highest reward first", (a, b) => b.reward - a.reward],
  worst: ["worst predictions first", (a, b) => (foretold(a) ?? 2) - (foretold(b) ?? 2)],
  best: ["best predictions first", (a, b) => (foretold(b) ?? -1) - (foretold(a) ?? -1)],
};

// Mean similarity of what was predicted; null where nothing was.
function foretold(episode) {
  if (episode.mean === undefined) {
    const scores = episode.turns.flatMap((turn) => turn.forecasts.map((forecast) => forecast.score)).filter(known);
    episode.mean = scores.length ? scores.reduce((sum, score) => sum + score, 0) / scores.length : null;
  }
  return episode.mean;
}

function haystack(episode) {
  episode.text ??= [episode.goal, episode.task_id, episode.initial_observation, episode.analysis?.mode, episode.analysis?.detail, episode.analysis?.lesson,
    ...episode.turns.flatMap((turn) => [turn.action, turn.observation])].filter(Boolean).join("\n").toLowerCase();
  return episode.text;
}

// The state of the list: all episodes, what the reader asked for, cards made so far.
const shelf = { all: [], found: [], shown: 0, cards: new Map(), asked: {}, runs: [] };

const FIELDS = [
  ["run", "Run", (episode) => String(episode.run), (value) => shelf.runs[Number(value)]],
  ["outcome", "Outcome", (episode) => (episode.won ? "won" : episode.stop_reason), (value) => OUTCOMES[value] ?? spaced(value)],
  ["type", "Type of task", (episode) => episode.task_type, spaced],
  ["mode", "Failure mode", (episode) => episode.analysis?.mode, spaced],
  ["iteration", "Iteration", (episode) => String(episode.iteration), (value) => value],
  ["group", "Group", (episode) => String(episode.group), (value) => value],
];

function matches(episode, asked) {
  if (FIELDS.some(([name, , read]) => asked[name] && read(episode) !== asked[name])) return false;
  return (asked.terms ?? []).every((term) => haystack(episode).includes(term));
}

const naturally = (a, b) => a.localeCompare(b, undefined, { numeric: true });
const asking = () => [...byId("filters").querySelectorAll("select, input")];

function makeFilters() {
  const select = (name, label, options) =>
    el("label", { id: `f-${name}` }, el("span", null, label), el("select", { name, change: search }, options.map(([value, text]) => el("option", { value }, text))));
  byId("filters").append(
    el("label", { class: "find" }, el("span", null, "Search"), el("input", { type: "search", name: "terms", id: "search", autocomplete: "off", spellcheck: "false",
      placeholder: "goal, command, observation, lesson", input: soon })),
    ...FIELDS.map(([name, label]) => select(name, label, [["", "all"]])),
    select("sort", "Order", Object.entries(SORTS).map(([value, [text]]) => [value, text])),
    el("button", { type: "button", class: "plain", click: () => { clearFilters(); byId("search").focus(); } }, "Clear"));
}

// What there is to choose from; what was chosen stays chosen.
function drawFilters() {
  for (const [name, , read, say] of FIELDS) {
    const values = new Set(shelf.all.map(read).filter(Boolean));
    // A watched run can be asked for iterations that are not here yet.
    if (name === "iteration" && shelf.live) for (let step = 1; step <= shelf.live.iterations; step += 1) values.add(String(step));
    const label = byId(`f-${name}`), field = label.querySelector("select");
    label.hidden = values.size < 2;
    const there = new Set([...field.options].map((option) => option.value));
    for (const value of values) if (!there.has(value)) field.append(el("option", { value }, say(value)));
    const [all, ...rest] = field.options;
    const chosen = field.value;
    all.after(...rest.sort((one, other) => naturally(one.value, other.value)));
    field.value = chosen;
  }
}

let waiting = 0;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(search, 120);
}

function clearFilters() {
  for (const field of asking()) {
    if (field.type === "search") field.value = "";
    else field.selectedIndex = 0;
  }
  search();
}

async function search() {
  const asked = Object.fromEntries(asking().map((field) => [field.name, field.value]));
  asked.terms = asked.terms.toLowerCase().split(/\s+/).filter(Boolean);
  shelf.asked = asked;
  if (asked.iteration && shelf.live) await shelf.live.fetch(asked.iteration);
  if (shelf.asked !== asked) return; // asked for something else meanwhile
  list(0);
}

// Finds, counts and shows; at least as many cards as before when only the data are new.
function list(least) {
  const [, compare] = SORTS[shelf.asked.sort] ?? SORTS.newest;
  const { asked } = shelf;
  shelf.found = shelf.all.filter((episode) => matches(episode, asked)).sort((a, b) => compare(a, b) || a.run - b.run || a.iteration - b.iteration || a.group - b.group || a.member - b.member);
  const won = shelf.found.filter((episode) => episode.won).length;
  byId("news").replaceChildren();
  byId("count").textContent = `${plural(shelf.found.length, "episode")} of ${shelf.all.length} shown here, ${won} won`;
  const keep = shelf.found.slice(0, Math.max(CHUNK, least)).map(cardOf);
  byId("cards").replaceChildren(...keep);
  shelf.shown = keep.length;
  offerMore();
}

function more() {
  byId("cards").append(...shelf.found.slice(shelf.shown, shelf.shown + CHUNK).map(cardOf));
  shelf.shown = Math.min(shelf.found.length, shelf.shown + CHUNK);
  offerMore();
}

function offerMore() {
  const left = shelf.found.length - shelf.shown;
  byId("more").replaceChildren(...(left > 0 ? [el("button", { type: "button", class: "plain", click() {
    const next = shelf.shown;
    more();
    byId("cards").children[next]?.querySelector("button").focus();
  } }, `Show ${Math.min(CHUNK, left)} more of ${left}`)] : []));
}

function cardOf(episode) {
  if (!shelf.cards.has(episode.key)) shelf.cards.set(episode.key, makeCard(episode));
  return shelf.cards.get(episode.key);
}

function makeCard(episode) {
  const body = el("div", { class: "card-body", id: `b-${episode.key}`, hidden: true });
  const score = foretold(episode);
  const outcome = OUTCOMES[episode.stop_reason] ?? spaced(episode.stop_reason);
  const button = el("button", { type: "button", class: "card-head", "aria-expanded": "false", "aria-controls": body.id, click: () => open(episode, body.hidden) },
    el("span", { class: episode.won ? "chip good" : "chip bad" }, episode.won ? "✓ won" : `✗ ${outcome}`),
    el("span", { class: "goal" }, episode.goal),
    episode.analysis && el("span", { class: "chip" }, spaced(episode.analysis.mode)),
    el("span", { class: "facts" }, shelf.runs.length > 1 && [swatch(episode.run), shelf.runs[episode.run], " · "],
      `iteration ${episode.iteration}, group ${episode.group}, member ${episode.member} · ${plural(episode.turns.length, "turn")}${known(score) ? ` · predictions ${number(score)}` : ""}`));
  const card = el("article", { class: "card", id: `c-${episode.key}`, "aria-label": `Episode ${episode.id}` },
    el("h3", null, button), el("a", { class: "anchor", href: `#${episode.key}`, title: "Link to this episode" }, "#", hidden(` link to episode ${episode.id}`)), body);
  return card;
}

function open(episode, wanted) {
  const card = cardOf(episode), body = card.lastElementChild;
  if (wanted && !body.childElementCount) body.append(...contents(episode));
  body.hidden = !wanted;
  card.querySelector("button").setAttribute("aria-expanded", String(wanted));
}

function contents(episode) {
  const fact = (name, ...value) => el("div", null, el("dt", null, name), el("dd", null, value));
  const { analysis } = episode;
  const scale = Math.max(1e-9, ...episode.turns.flatMap((turn) => [turn.advantage, turn.advantage_state, turn.advantage_outcome].filter(known).map(Math.abs)));
  return [
    el("dl", { class: "facts-list" },
      fact("Task", el("code", null, episode.task_id)), episode.task_type && fact("Type", spaced(episode.task_type)), fact("Reward", figure(episode.reward)), fact("Ended", spaced(episode.stop_reason)),
      (episode.chosen_because || shelf.all.some((each) => each.run === episode.run && each.chosen_because)) && fact("Chosen",
        episode.chosen_because ? `by the curriculum, because of ${spaced(episode.chosen_because)}${episode.chosen_reason ? `: ${episode.chosen_reason}` : ""}` : "uniformly"),
      episode.replaced && fact("Note", "this group was played and replaced: nothing was learnt from it")),
    analysis && el("section", { class: "reflection", "aria-label": "Reflection" },
      el("p", null, el("b", null, spaced(analysis.mode)), known(analysis.critical_step) && el("span", null, " at ", el("a", { href: `#${episode.key}/${analysis.critical_step + 1}` }, `turn ${analysis.critical_step + 1}`)),
        el("span", { class: "muted" }, ` read by ${analysis.source}${analysis.repaired ? ", repaired" : ""}`)),
      analysis.detail && el("p", { class: "text" }, analysis.detail),
      analysis.lesson && el("p", { class: "text" }, el("b", null, "Lesson: "), analysis.lesson),
      analysis.query && el("p", { class: "text" }, el("b", null, "Looked for: "), analysis.query)),
    el("div", { class: "said start" }, el("p", { class: "label" }, "At the start"), el("p", { class: "text" }, episode.initial_observation)),
    el("ol", { class: "turns" }, episode.turns.map((turn, at) => turnItem(episode, turn, at, scale, () => twinsOf(episode, at)))),
  ].filter(Boolean);
}

// The other turns that were taken in the same state of the same group.
function twinsOf(episode, at) {
  const { state_group: state, state_group_size: size } = episode.turns[at];
  const rows = [];
  for (const other of shelf.all) {
    if (other.run !== episode.run || other.iteration !== episode.iteration || other.group !== episode.group) continue;
    other.turns.forEach((turn, place) => {
      if (turn.state_group !== state) return;
      const here = other === episode && place === at;
      rows.push([here ? "this turn" : el("a", { href: `#${other.key}/${place + 1}` }, `member ${other.member}, turn ${place + 1}`),
        el("code", null, turn.action), number(turn.return_modulated, 3), signed(turn.advantage_state)]);
    });
  }
  const missing = (size ?? rows.length) - rows.length;
  return el("div", null,
    table("Turns taken in this state", [["Turn"], ["Command"], ["Return", true], ["A state", true]], rows),
    missing > 0 && el("p", { class: "muted" }, `${plural(missing, "more turn")} in episodes that are not in this report.`));
}

// Opens what the address names: #run/iteration/group/member, and a turn after it.
async function follow() {
  const parts = decodeURIComponent(location.hash.slice(1)).split("/");
  if (parts.length < 4 || parts.some((part) => !/^\d+$/.test(part))) return;
  const key = parts.slice(0, 4).join("/");
  const named = () => shelf.all.find((each) => each.key === key);
  if (!named() && shelf.live) await shelf.live.fetch(parts[1]);
  const episode = named();
  if (!episode) {
    byId("count").textContent = `The episode ${parts.slice(1, 4).join("/")} of the address is not in this report.`;
    return;
  }
  if (!shelf.found.includes(episode)) clearFilters();
  if (!shelf.found.includes(episode)) list(0);
  while (!byId("cards").contains(cardOf(episode))) more();
  open(episode, true);
  const turn = parts[4] && byId(`t-${key}-${Number(parts[4]) - 1}`);
  (turn || cardOf(episode)).scrollIntoView({ block: "start" });
  (turn || cardOf(episode).querySelector("button")).focus({ preventScroll: true });
}

// j and k: the card after or before the one that has the focus, or the first one in the window.
function step(by) {
  const cards = [...byId("cards").children];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  const first = cards.findIndex((card) => card.getBoundingClientRect().bottom > 80);
  let next = at === -1 ? Math.max(0, first) : at + by;
  if (next >= cards.length && shelf.shown < shelf.found.length) more();
  next = Math.max(0, Math.min(byId("cards").children.length - 1, next));
  byId("cards").children[next]?.querySelector("button").focus();
  byId("cards").children[next]?.scrollIntoView({ block: "nearest" });
}

// Adds episodes that are not here yet; says how many they were.
function shelve(run, episodes) {
  const here = new Set(shelf.all.map((episode) => episode.key));
  const fresh = episodes.filter((episode) => !here.has(`${run}/${episode.id}`));
  for (const episode of fresh) shelf.all.push(Object.assign(episode, { run, key: `${run}/${episode.id}` }));
  return fresh.length;
}
