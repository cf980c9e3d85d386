// Episodes as cards, opened one by one; and linked by the part of the address after the #.

const isEvaluation = (episode) => runs[episode.run].kind === "evaluation";

function cardOf(episode) {
  if (!shelf.cards.has(episode.key)) shelf.cards.set(episode.key, makeCard(episode));
  return shelf.cards.get(episode.key);
}

function makeCard(episode) {
  const body = el("div", { class: "card-body", id: `b-${episode.key}`, hidden: true });
  const facts = [
    isEvaluation(episode)
      ? `task ${episode.group + 1}, repeat ${episode.member}`
      : `iteration ${episode.iteration}, group ${episode.group}, member ${episode.member}`,
    plural(episode.turns.length, "turn"),
    known(predicted(episode)) && `predictions ${number(predicted(episode))}`,
  ]
    .filter(Boolean)
    .join(" · ");
  const outcome = OUTCOMES[episode.stop_reason] ?? spaced(episode.stop_reason);
  const button = el(
    "button",
    {
      type: "button",
      class: "card-head",
      "aria-expanded": "false",
      "aria-controls": body.id,
      click: () => open(episode, body.hidden),
    },
    el("span", { class: episode.won ? "chip good" : "chip bad" }, episode.won ? "✓ won" : `✗ ${outcome}`),
    el("span", { class: "goal" }, episode.goal),
    episode.analysis && el("span", { class: "chip" }, spaced(episode.analysis.mode)),
    el(
      "span",
      { class: "facts" },
      shelf.runs.length > 1 && [swatch(shelf.places[episode.run]), shelf.runs[episode.run].name, " · "],
      facts,
    ),
  );
  const card = el(
    "article",
    { class: "card", id: `c-${episode.key}`, "aria-label": `Episode ${episode.id}` },
    el("h3", null, button),
    el(
      "a",
      { class: "anchor", href: `#${episode.key}`, title: "Link to this episode" },
      "#",
      hidden(` link to episode ${episode.id}`),
    ),
    body,
  );
  return card;
}

function open(episode, wanted) {
  const card = cardOf(episode),
    body = card.lastElementChild;
  if (wanted && !body.childElementCount) body.append(...contents(episode));
  body.hidden = !wanted;
  card.querySelector("button").setAttribute("aria-expanded", String(wanted));
}

function contents(episode) {
  const fact = (name, ...value) => el("div", null, el("dt", null, name), el("dd", null, value));
  const { analysis } = episode;
  const scale = Math.max(
    1e-9,
    ...episode.turns.flatMap((turn) =>
      [turn.advantage, turn.advantage_state, turn.advantage_outcome, turn.advantage_estimate]
        .filter(known)
        .map(Math.abs),
    ),
  );
  return [
    el(
      "dl",
      { class: "facts-list" },
      fact("Task", el("code", null, episode.task_id)),
      episode.task_type && fact("Type", spaced(episode.task_type)),
      fact("Reward", figure(episode.reward)),
      fact("Ended", spaced(episode.stop_reason)),
      (episode.chosen_because || shelf.all.some((each) => each.run === episode.run && each.chosen_because)) &&
        fact(
          "Chosen",
          !episode.chosen_because
            ? "uniformly"
            : ["fresh", "replayed"].includes(episode.chosen_because)
              ? `by the task simulator: ${episode.chosen_reason}`
              : `by the curriculum, because of ${[spaced(episode.chosen_because), episode.chosen_reason].filter(Boolean).join(": ")}`,
        ),
      episode.lessons.length > 0 && fact("Lessons", el("ul", null, episode.lessons.map((lesson) => el("li", null, lesson)))),
      episode.usage && fact("Model", usageText(episode.usage)),
      episode.replaced && fact("Note", "this group was played, and replaced or filtered out: it did not train the policy"),
    ),
    analysis &&
      el(
        "section",
        { class: "reflection", "aria-label": "Reflection" },
        el(
          "p",
          null,
          el("b", null, spaced(analysis.mode)),
          known(analysis.critical_step) &&
            el(
              "span",
              null,
              " at ",
              el("a", { href: `#${episode.key}/${analysis.critical_step + 1}` }, `turn ${analysis.critical_step + 1}`),
            ),
          el("span", { class: "muted" }, ` read by ${analysis.source}${analysis.repaired ? ", repaired" : ""}`),
        ),
        analysis.detail && el("p", { class: "text" }, analysis.detail),
        analysis.lesson && el("p", { class: "text" }, el("b", null, "Lesson: "), analysis.lesson),
        analysis.query && el("p", { class: "text" }, el("b", null, "Looked for: "), analysis.query),
      ),
    el(
      "div",
      { class: "said start" },
      el("p", { class: "label" }, "At the start"),
      el("p", { class: "text" }, episode.initial_observation),
    ),
    el(
      "ol",
      { class: "turns" },
      episode.turns.map((turn, at) => turnItem(episode, turn, at, scale, () => twinsOf(episode, at))),
    ),
  ].filter(Boolean);
}

// The other turns that were taken in the same state of the same group.
function twinsOf(episode, at) {
  const { state_group: state, state_group_size: size, grouping_state: compared } = episode.turns[at];
  const rows = [];
  for (const other of shelf.all) {
    if (other.run !== episode.run || other.iteration !== episode.iteration || other.group !== episode.group) continue;
    other.turns.forEach((turn, place) => {
      if (turn.state_group !== state) return;
      const here = other === episode && place === at;
      rows.push([
        here
          ? "this turn"
          : el("a", { href: `#${other.key}/${place + 1}` }, `member ${other.member}, turn ${place + 1}`),
        el("code", null, turn.calls?.length ? turn.calls.map(callText).join("; ") : turn.action),
        number(returnOf(turn), 3),
        signed(turn.advantage_state),
      ]);
    });
  }
  const missing = (size ?? rows.length) - rows.length;
  return el(
    "div",
    null,
    known(compared) &&
      el(
        "div",
        { class: "said" },
        el("p", { class: "label" }, "The command before failed and changed nothing: the state is still"),
        el("p", { class: "text" }, compared),
      ),
    table("Turns taken in this state", [["Turn"], ["Command"], ["Return", true], ["A state", true]], rows),
    missing > 0 &&
      el("p", { class: "muted" }, `${plural(missing, "more turn")} in episodes that are not in this report.`),
  );
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
