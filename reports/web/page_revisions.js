// What Agent-R searched and spliced: counts of each iteration, and paths with their mistake, the signal and the world.

const PARTS_OF_PATH = {
  shared: "shared",
  bad: "bad",
  mistake: "the mistake",
  signal: "signal",
  good: "good",
  unread: "unread",
};
const TRUTHS = {
  same: "the world answers as on the good path",
  valid: "the world answers otherwise, with the same reward",
  false: "the world refutes it",
  searched: "played from the bad state",
};

function spliceOf(path) {
  return folded(
    `${path.task_id}, iteration ${path.iteration}: cut at step ${path.cut} of ${path.bad_steps}, ${path.truth}`,
    () =>
      el(
        "div",
        null,
        el("p", null, path.first),
        el("p", null, `${TRUTHS[path.truth] ?? path.truth}; reward ${figure(path.bad_outcome)} → ${figure(path.outcome)}.`),
        el("p", null, `Judge: ${path.judge}${path.reason ? `: ${path.reason}` : ""}`),
        table(
          "Steps of the spliced path",
          [["Step", true], ["Part"], ["Command"], ["What the world said"]],
          path.steps.map(([part, command, observation], at) => [
            String(at + 1),
            PARTS_OF_PATH[part] ?? part,
            el("code", null, command),
            observation,
          ]),
        ),
      ),
  );
}

const MOST_ROWS = 12;

// Over all iterations, what the world said to splices of one kind: counts of the form kind/name/truth.
function truthsBy(kind, title, heading, counts, order) {
  const found = new Map();
  for (const [key, times] of counts.flatMap(Object.entries)) {
    const end = key.lastIndexOf("/");
    if (!key.startsWith(`${kind}/`) || end <= kind.length) continue;
    const name = key.slice(kind.length + 1, end);
    const row = found.get(name) ?? { name, same: 0, valid: 0, false: 0, all: 0 };
    row[key.slice(end + 1)] += times;
    row.all += times;
    found.set(name, row);
  }
  const rows = [...found.values()].sort(order).slice(0, MOST_ROWS);
  if (!rows.length) return [];
  const columns = [[heading], ["Splices", true], ["Same", true], ["Same or valid", true]];
  const share = (row, times) => percent(times / row.all, 0);
  return [
    table(
      title,
      columns,
      rows.map((row) => [row.name, String(row.all), share(row, row.same), share(row, row.same + row.valid)]),
    ),
  ];
}

function revisionsOf({ counts, paths }) {
  const of = (row, name) => String(row[name] ?? 0);
  return [
    table(
      "Search trees, splices and what was imitated, by iteration",
      [
        ["Iteration", true],
        ["Trees", true],
        ["Without good leaf", true],
        ["Without bad leaf", true],
        ["Pairs", true],
        ["Splices same / valid / false", true],
        ["Imitated: good", true],
        ["revised", true],
        ["preferred", true],
        ["Mean cut", true],
      ],
      counts.map((row) => [
        String(row.iteration),
        of(row, "trees"),
        percent(row.without_good_share, 0),
        percent(row.without_bad_share, 0),
        of(row, "pairs"),
        ["same", "valid", "false"].map((truth) => of(row, `splice_${truth}`)).join(" / "),
        of(row, "examples_good"),
        of(row, "examples_revision"),
        of(row, "examples_pair"),
        number(row.revision_length, 1),
      ]),
    ),
    ...truthsBy(
      "truth",
      "Splices that the world confirms, by the last bad step",
      "Command",
      counts,
      (one, other) => other.all - one.all,
    ),
    ...truthsBy(
      "bad_steps",
      "Splices that the world confirms, by the number of bad steps",
      "Bad steps",
      counts,
      (one, other) => one.name - other.name,
    ),
    ...paths.map(spliceOf),
  ];
}

function drawRevisions(runs) {
  const revised = runs.filter((run) => run.revisions);
  byId("revisions").hidden = !revised.length;
  byId("revision-paths").replaceChildren(
    ...revised.flatMap((run) => [
      ...(runs.length > 1 ? [el("h3", { class: "run-title" }, swatch(shelf.places[runs.indexOf(run)]), run.name)] : []),
      ...revisionsOf(run.revisions),
    ]),
  );
}
