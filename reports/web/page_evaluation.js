// What was measured on held-out tasks: by type, before and after, and two runs beside each other.

// Evaluations in the order in which they were made: [name, iteration, summary].
function evaluationsOf(run) {
  const last = run.steps[0];
  const at = (name) => (name === "before" ? 0 : name === "after" ? last : Number(/\d+/.exec(name)?.[0] ?? last));
  const rank = (name) => (name === "before" ? 0 : name === "after" ? 2 : 1);
  return Object.entries(run.evaluations)
    .filter(([, summary]) => known(summary?.success))
    .map(([name, summary]) => [name, at(name), summary])
    .sort((a, b) => rank(a[0]) - rank(b[0]) || a[1] - b[1]);
}

// Whether the axis of the training curves has a step for each update, as Agent-R's, and not for each iteration.
const byUpdate = (run) => Boolean(run.training.values.revision);

// Where an iteration is on that axis.
function stepOf(run, iteration) {
  const { step, values } = run.training;
  return byUpdate(run) ? (step[values.revision.lastIndexOf(iteration)] ?? 0) : iteration;
}

function firstAndLast(run) {
  const all = evaluationsOf(run);
  const last = all.filter(([name]) => name !== "before").at(-1);
  return {
    before: all.find(([name]) => name === "before")?.[2],
    after: last?.[2],
    when: !last || last[0] === "after" ? "after" : `at iteration ${last[1]}`,
  };
}

// What a run gained, over all or of one type: over the tasks that both measurements played, where that is known.
function gainOf(run, type) {
  const { before, after } = firstAndLast(run);
  const cell = type === undefined ? run.gain?.all : run.gain?.by_type?.[type];
  if (cell) return { gain: cell.difference, interval: cell.interval, paired: !run.members, cell };
  return type === undefined
    ? difference(before, after)
    : difference(before?.by_type?.[type], after?.by_type?.[type]);
}

// Of the tasks that both measurements played: how many only the one before won, and how many only the last one.
const changed = (found) => (known(found?.cell?.only_before) ? `${found.cell.only_before} : ${found.cell.only_last}` : "–");

// Newcombe's interval of the difference of two shares, from their own (Wilson) intervals.
function difference(first, second) {
  if (!first || !second) return null;
  const gain = second.success - first.success;
  if (!first.interval || !second.interval) return { gain, interval: null };
  const down = Math.hypot(second.success - second.interval[0], first.interval[1] - first.success);
  const up = Math.hypot(second.interval[1] - second.success, first.success - first.interval[0]);
  return { gain, interval: [gain - down, gain + up] };
}

const points = (value) => (known(value) ? signed(100 * value, 1) : "–");
const pointsInterval = (pair) => (pair ? `${points(pair[0])} to ${points(pair[1])}` : "");

function withInterval(summary) {
  if (!summary) return "–";
  return el(
    "span",
    null,
    percent(summary.success),
    " ",
    el("span", { class: "muted aside" }, summary.interval ? `(${interval(summary.interval)})` : ""),
  );
}

// Resampled pairs that are all alike have no spread, which does not make the gain certain.
const gainInterval = (found) =>
  !found?.interval
    ? ""
    : found.paired && found.interval[0] === found.interval[1]
      ? "all tasks alike"
      : pointsInterval(found.interval);

function gainWithInterval(found) {
  if (!found) return "–";
  const text = gainInterval(found);
  const between = text ? `(${text})` : "";
  return el("span", null, el("b", null, points(found.gain)), " ", el("span", { class: "muted aside" }, between));
}

// Before and after on one line from 0 to 100 %: rings and discs with their intervals.
function track(marks) {
  const x = (share) => 4 + 192 * Math.min(1, Math.max(0, share));
  const picture = svg(
    "svg",
    { viewBox: "0 0 200 24", class: "track", "aria-hidden": "true" },
    [0, 0.25, 0.5, 0.75, 1].map((share) => svg("line", { x1: x(share), x2: x(share), y1: 2, y2: 22, class: "grid" })),
  );
  marks.forEach(({ summary, hollow, place }, row) => {
    if (!summary) return;
    const y = marks.length === 1 ? 12 : 7 + (10 * row) / (marks.length - 1);
    const group = svg("g", { class: seriesClass(place) });
    if (summary.interval)
      group.append(
        svg("line", { x1: x(summary.interval[0]), x2: x(summary.interval[1]), y1: y, y2: y, class: "whisker" }),
      );
    group.append(svg("circle", { cx: x(summary.success), cy: y, r: 3.6, class: hollow ? "hollow" : "disc" }));
    picture.append(group);
  });
  return picture;
}

const typesOf = (summaries) => [...new Set(summaries.flatMap((summary) => Object.keys(summary?.by_type ?? {})))].sort();

// An evaluation of evaluate.py: there is one measurement.
function measuredTable(run, summary, where, measures, place, several) {
  const row = (name, part) => [
    name,
    String(part.n),
    withInterval(part),
    number(part.steps, 1),
    ...measures.map((measure) => number(part.metrics?.[measure]?.mean, 3)),
    track([{ summary: part, place }]),
  ];
  return el(
    "div",
    null,
    several && el("h3", { class: "run-title" }, swatch(place), run.name),
    table(
      `Success by task type (${where})`,
      [
        ["Type of task"],
        ["Episodes", true],
        ["Success", true],
        ["Steps", true],
        ...measures.map((measure) => [spaced(measure), true]),
        ["0 to 100 %"],
      ],
      [
        row(el("strong", null, "all tasks"), summary),
        ...typesOf([summary]).map((type) => row(spaced(type), summary.by_type[type])),
      ],
    ),
    summary.at_k &&
      table(
        "Won in at least one of k episodes of a task (pass@k), in all k (pass^k)",
        [["k", true], ["Tasks", true], ["pass@k", true], ["pass^k", true]],
        summary.at_k.map((row) => [
          String(row.k),
          String(row.tasks),
          ...["pass@k", "pass^k"].map((name) =>
            withInterval({ success: row[name].mean, interval: row[name].interval }),
          ),
        ]),
      ),
    el(
      "p",
      { class: "muted below" },
      run.members
        ? `Means over ${run.members} evaluations, with the lowest and the highest of them.`
        : "Intervals are 95 %, over tasks.",
    ),
  );
}

// What was played: official data with their version, or generated ones with their size.
function dataText({ source, ...rest } = {}) {
  return [source, ...Object.entries(rest).map(([name, value]) => `${name} ${value}`)].filter(Boolean).join(", ");
}

function evaluationTable(run, place, several) {
  const all = evaluationsOf(run);
  if (!all.length) return el("p", { class: "muted" }, `${run.name} has no evaluation on held-out tasks.`);
  const { before, after, when } = firstAndLast(run);
  const split = (after ?? before).task_split;
  const row = (name, first, second, gain) => {
    return [
      name,
      String((second ?? first)?.n ?? "–"),
      withInterval(first),
      withInterval(second),
      gainWithInterval(gain),
      ...(run.gain && !run.members ? [changed(gain)] : []),
      track([
        { summary: first, hollow: true, place },
        { summary: second, place },
      ]),
    ];
  };
  const rows = [
    row(el("strong", null, "all tasks"), before, after, gainOf(run)),
    ...typesOf([before, after]).map((type) =>
      row(spaced(type), before?.by_type?.[type], after?.by_type?.[type], gainOf(run, type)),
    ),
  ];
  const where = split
    ? [`${split.tasks} tasks of ${split.split}, digest ${split.digest}`, dataText(split.data)].filter(Boolean).join("; ")
    : "held-out tasks";
  const measures = [...new Set(all.flatMap(([, , summary]) => Object.keys(summary.metrics ?? {})))];
  const made = all.map(([name, step, summary]) => [
    name,
    String(step),
    String(summary.n ?? "–"),
    withInterval(summary),
    number(summary.reward, 3),
    number(summary.steps, 1),
    number(summary.prediction, 3),
    ...measures.map((name) => number(summary.metrics?.[name]?.mean, 3)),
  ]);
  if (run.kind === "evaluation") return measuredTable(run, after, where, measures, place, several);
  return el(
    "div",
    null,
    several && el("h3", { class: "run-title" }, swatch(place), run.name),
    table(
      `Success by task type, before and after training (${where})`,
      [
        ["Type of task"],
        ["Tasks", true],
        ["Before", true],
        [`${when[0].toUpperCase()}${when.slice(1)}`, true],
        ["Gain in points", true],
        ...(run.gain && !run.members ? [["First : last", true]] : []),
        ["Ring: before, disc: after"],
      ],
      rows,
    ),
    after &&
      before &&
      el(
        "p",
        { class: "muted below" },
        run.members
          ? `Means over ${run.members} runs, with the lowest and the highest of them.`
          : run.gain
            ? "Intervals are 95 %. The gain's is over pairs, as both measurements played the same tasks. First : last counts the tasks that only the first, and only the last of the two, solved."
          : "Intervals are 95 %. The gain's treats the two measurements as independent, because results per task are missing. It is too wide if both played the same tasks.",
      ),
    folded(`Every evaluation (${all.length})`, () =>
      table(
        "Every evaluation of the run",
        [
          ["Evaluation"],
          ["Iteration", true],
          ["Tasks", true],
          ["Success", true],
          ["Reward", true],
          ["Steps", true],
          ["Predictive reward", true],
          ...measures.map((name) => [spaced(name), true]),
        ],
        made,
      ),
    ),
  );
}

const OPTIONS_SHOWN = 12;
// The first run and another one, whose place among all is given.
function comparison(first, second, place) {
  const ends = [first, second].map(firstAndLast);
  const digests = ends.map((end) => end.after?.task_split?.digest);
  const unequal = digests[0] && digests[1] && digests[0] !== digests[1];
  const row = (name, pick) => {
    const [a, b] = ends.map((end) => pick(end.after));
    const gap = unequal ? null : difference(a, b);
    if (gap && (first.members || second.members)) gap.interval = null; // between means of few runs
    const start = ends.map((end) => percent(pick(end.before)?.success)).join(" / ");
    return [
      name,
      start,
      withInterval(a),
      withInterval(b),
      gainWithInterval(gap),
      track([
        { summary: a, place: 0 },
        { summary: b, place },
      ]),
    ];
  };
  const rows = [
    row(el("strong", null, "all tasks"), (summary) => summary),
    ...typesOf(ends.map((end) => end.after)).map((type) => row(spaced(type), (summary) => summary?.by_type?.[type])),
  ];
  const names = [...new Set([...Object.keys(first.config), ...Object.keys(second.config)])].sort();
  const own = first.members || second.members ? ["run_dir", "seed"] : ["run_dir"];
  const unlike = names.filter((name) => !own.includes(name) && first.config[name] !== second.config[name]);
  const options = () =>
    table(
      plural(unlike.length, "option differs", "options differ"),
      [["Option"], [first.name], [second.name]],
      unlike.map((name) => [el("code", null, name), first.config[name] ?? "–", second.config[name] ?? "–"]),
    );
  return [
    unequal &&
      el(
        "p",
        { class: "warning" },
        "The two runs were measured on different splits: their figures cannot be compared.",
      ),
    table(
      `Success${[first, second].some((run) => run.kind === "evaluation") ? "" : " after training"}: ${second.name} against ${first.name}`,
      [
        ["Type of task"],
        [`Before (${first.name} / ${second.name})`, true],
        [first.name, true],
        [second.name, true],
        ["Difference in points", true],
        [`0 to 100 % (upper: ${first.name})`],
      ],
      rows,
    ),
    el(
      "p",
      { class: "muted" },
      first.members || second.members
        ? "Of several runs there are the means, with the lowest and the highest."
        : "Intervals are 95 %. Those of differences treat the runs as independent. If both runs played the same tasks, `evaluate.py compare` gives narrower, paired intervals.",
    ),
    unlike.length === 0 && el("p", null, `${second.name} and ${first.name} differ in no option.`),
    unlike.length > 0 &&
      (unlike.length <= OPTIONS_SHOWN
        ? options()
        : folded(plural(unlike.length, "option differs", "options differ"), options)),
  ];
}
