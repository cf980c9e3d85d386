// The list of episodes: found, filtered, sorted, shown a few at a time.

const CHUNK = 30;
const OUTCOMES = {
  won: "won",
  lost: "ended without success",
  max_steps: "out of turns",
  context: "context full",
  error: "environment failed",
};
const SORTS = {
  newest: ["newest first", (a, b) => b.iteration - a.iteration],
  oldest: ["oldest first", (a, b) => a.iteration - b.iteration],
  longest: ["most turns first", (a, b) => b.turns.length - a.turns.length],
  reward: ["highest reward first", (a, b) => b.reward - a.reward],
  worst: ["worst predictions first", (a, b) => (predicted(a) ?? 2) - (predicted(b) ?? 2)],
  best: ["best predictions first", (a, b) => (predicted(b) ?? -1) - (predicted(a) ?? -1)],
};

// Mean similarity of what was predicted; null where nothing was.
function predicted(episode) {
  if (episode.mean === undefined) {
    const scores = episode.turns.flatMap((turn) => turn.predictions.map((prediction) => prediction.score)).filter(known);
    episode.mean = scores.length ? scores.reduce((sum, score) => sum + score, 0) / scores.length : null;
  }
  return episode.mean;
}

function haystack(episode) {
  episode.text ??= [
    episode.goal,
    episode.task_id,
    episode.initial_observation,
    episode.analysis?.mode,
    episode.analysis?.detail,
    episode.analysis?.lesson,
    ...episode.turns.flatMap((turn) => [turn.action, turn.observation]),
  ]
    .filter(Boolean)
    .join("\n")
    .toLowerCase();
  return episode.text;
}

// The state of the list: all episodes, what the reader asked for, cards made so far.
const shelf = { all: [], found: [], shown: 0, cards: new Map(), asked: {}, runs: [], places: [] };

const FIELDS = [
  ["run", "Run", (episode) => String(episode.run), (value) => shelf.runs[Number(value)].name],
  [
    "outcome",
    "Outcome",
    (episode) => (episode.won ? "won" : episode.stop_reason),
    (value) => OUTCOMES[value] ?? spaced(value),
  ],
  ["type", "Type of task", (episode) => episode.task_type, spaced],
  ["mode", "Failure mode", (episode) => episode.analysis?.mode, spaced],
  ["iteration", "Iteration", (episode) => String(episode.iteration), (value) => value],
  ["group", "Group", (episode) => String(episode.group), (value) => value],
  [
    "tokens",
    "Tokens",
    (episode) => (episode.turns.some((turn) => turn.tokens) ? "shown" : "not recorded"),
    (value) => value,
  ],
];

function matches(episode, asked) {
  if (FIELDS.some(([name, , read]) => asked[name] && read(episode) !== asked[name])) return false;
  return (asked.terms ?? []).every((term) => haystack(episode).includes(term));
}

const naturally = (a, b) => a.localeCompare(b, undefined, { numeric: true });
const asking = () => [...byId("filters").querySelectorAll("select, input")];

function makeFilters() {
  const select = (name, label, options) =>
    el(
      "label",
      { id: `f-${name}` },
      el("span", null, label),
      el(
        "select",
        { name, change: search },
        options.map(([value, text]) => el("option", { value }, text)),
      ),
    );
  byId("filters").append(
    el(
      "label",
      { class: "find" },
      el("span", null, "Search"),
      el("input", {
        type: "search",
        name: "terms",
        id: "search",
        autocomplete: "off",
        spellcheck: "false",
        placeholder: "goal, command, observation, lesson",
        input: soon,
      }),
    ),
    ...FIELDS.map(([name, label]) => select(name, label, [["", "all"]])),
    select(
      "sort",
      "Order",
      Object.entries(SORTS).map(([value, [text]]) => [value, text]),
    ),
    el(
      "button",
      {
        type: "button",
        class: "plain",
        click: () => {
          clearFilters();
          byId("search").focus();
        },
      },
      "Clear",
    ),
  );
}

// What there is to choose from; what was chosen stays chosen.
function drawFilters() {
  for (const [name, , read, say] of FIELDS) {
    const values = new Set(shelf.all.map(read).filter(Boolean));
    // A watched run can be asked for iterations that are not here yet.
    if (name === "iteration" && shelf.live)
      for (let step = 1; step <= shelf.live.iterations; step += 1) values.add(String(step));
    const label = byId(`f-${name}`),
      field = label.querySelector("select");
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
  shelf.found = shelf.all
    .filter((episode) => matches(episode, asked))
    .sort(
      (a, b) => compare(a, b) || a.run - b.run || a.iteration - b.iteration || a.group - b.group || a.member - b.member,
    );
  const won = shelf.found.filter((episode) => episode.won).length;
  byId("news").replaceChildren();
  byId("count").textContent = `${plural(shelf.found.length, "episode")} of ${shelf.all.length} shown here, ${won} won`;
  const keep = shelf.found.slice(0, Math.max(CHUNK, least)).map(cardOf);
  const held = byId("cards").contains(document.activeElement) ? document.activeElement : null;
  byId("cards").replaceChildren(...keep);
  if (held?.isConnected) held.focus({ preventScroll: true }); // moving a node takes its focus
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
  byId("more").replaceChildren(
    ...(left > 0
      ? [
          el(
            "button",
            {
              type: "button",
              class: "plain",
              click() {
                const next = shelf.shown;
                more();
                byId("cards").children[next]?.querySelector("button").focus();
              },
            },
            `Show ${Math.min(CHUNK, left)} more of ${left}`,
          ),
        ]
      : []),
  );
}

// Adds episodes that are not here yet; returns their number.
function shelve(run, episodes) {
  const here = new Set(shelf.all.map((episode) => episode.key));
  const fresh = episodes.filter((episode) => !here.has(`${run}/${episode.id}`));
  for (const episode of fresh) shelf.all.push(Object.assign(episode, { run, key: `${run}/${episode.id}` }));
  return fresh.length;
}
