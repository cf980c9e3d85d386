// What a person asks first: did it learn, how sure is that, what went wrong.

const STATES = {
  "warm start": "learning from demonstrations",
  training: "training",
  measuring: "measuring itself",
  finished: "finished",
  stopped: "stopped before its end",
};

function tile(name, value, note) {
  return el(
    "div",
    { class: "tile" },
    el("dt", null, name),
    el("dd", null, el("b", null, value), note && el("span", { class: "muted" }, note)),
  );
}

// Evaluations between may be on fewer tasks than those before and after.
const ofEpisodes = (summary) =>
  summary?.interval && `${interval(summary.interval)}${summary.n ? `, ${plural(summary.n, "episode")}` : ""}`;

const wallClock = (run) => run.seconds + run.imitation_seconds;

function runPanel(run, place, several) {
  const { before, after, when } = firstAndLast(run);
  const gain = gainOf(run);
  const score = run.training.values.prediction_score?.filter(known) ?? [];
  const head = [
    several && swatch(place),
    several && el("h2", { class: "run-name" }, run.name),
    el("span", { class: "chip", "data-state": run.state }, STATES[run.state] ?? run.state),
    el(
      "span",
      null,
      `${run.method} on ${run.env_id}, seed ${run.seed}` +
        (run.kind === "evaluation" ? "" : `, iteration ${run.steps[0]} of ${run.steps[1]}`),
    ),
  ];
  const measured = run.kind === "evaluation" && [
    tile("Success", percent(after.success), after.interval && interval(after.interval)),
    tile("Episodes", String(after.n), after.errors ? `${after.errors} without an outcome` : ""),
    tile("Steps", number(after.steps, 1), `${percent(after.invalid)} invalid`),
    after.usage?.answers > 0 && tile("Model", plural(after.usage.answers, "answer"), usageText(after.usage)),
  ];
  const tiles = measured || [
    tile("Success before", before ? percent(before.success) : "–", ofEpisodes(before)),
    tile(`Success ${when}`, after ? percent(after.success) : "–", ofEpisodes(after)),
    tile("Gain", gain ? `${points(gain.gain)} points` : "–", gainInterval(gain)),
    score.length > 0 &&
      tile("Predictive reward", `${number(score[0])} → ${number(score.at(-1))}`, "first → last iteration"),
    tile(
      "Wall-clock",
      wallClock(run) ? duration(wallClock(run)) : "–",
      [
        run.imitation_seconds && `imitation ${duration(run.imitation_seconds)}`,
        run.seconds && run.steps[0] && `${duration(run.seconds / run.steps[0])} per iteration`,
      ]
        .filter(Boolean)
        .join(", "),
    ),
    tile(
      "Alarms",
      run.alarms.length ? String(run.alarms.length) : run.time.step.length ? "none" : "–",
      "of the watchdog",
    ),
  ];
  const notes = [
    ...(run.idle ?? []).map((text) =>
      el("li", null, el("strong", null, run.state === "finished" ? "No effect: " : "No effect so far: "), text),
    ),
    ...run.alarms.map((alarm) =>
      el("li", null, el("strong", null, `Alarm, ${span(alarm.step, alarm.until)}: `), spaced(String(alarm.name))),
    ),
    ...(run.notes ?? []).map((text) => el("li", null, text)),
  ];
  return el(
    "article",
    { class: "run", "aria-label": `Run ${run.name}` },
    el("p", { class: "run-head" }, head),
    el("dl", { class: "tiles" }, tiles),
    el("p", { class: "muted path" }, run.path),
    notes.length
      ? el("div", { class: "warning" }, el("ul", null, notes))
      : run.time.step.length > 0 &&
          el(
            "p",
            { class: "muted" },
            `The watchdog raised no alarm${run.idle ? ", and every mechanism that is on had an effect" : ""}.`,
          ),
  );
}

// Several runs that differ in nothing but their seed: their means, and each of them in a fold.
function groupPanel(series, place, several) {
  const run = meanRun(series);
  const { before, after, when } = firstAndLast(run);
  const gain = gainOf(run);
  const alarms = series.runs.reduce((sum, one) => sum + one.alarms.length, 0);
  const share = (summary) => (summary ? percent(summary.success) : "–");
  const trained = run.kind !== "evaluation";
  return el(
    "article",
    { class: "run", "aria-label": `Runs ${series.name}` },
    el(
      "p",
      { class: "run-head" },
      several && swatch(place),
      el("h2", { class: "run-name" }, series.name),
      el("span", { class: "chip" }, seedsOf(series)),
      [...byKey(series.runs, (one) => one.state)].map(([state, same]) =>
        el("span", { class: "chip", "data-state": state }, `${same.length} ${STATES[state] ?? state}`),
      ),
    ),
    el(
      "dl",
      { class: "tiles" },
      trained && tile("Success before", share(before), before && interval(before.interval)),
      tile(trained ? `Success ${when}` : "Success", share(after), after && interval(after.interval)),
      trained && tile("Gain", gain ? `${points(gain.gain)} points` : "–", gain && pointsInterval(gain.interval)),
      trained && tile("Wall-clock", duration(series.runs.reduce((sum, one) => sum + wallClock(one), 0)), "of all runs"),
      trained && tile("Alarms", alarms ? String(alarms) : "none", "of the watchdog"),
    ),
    el("p", { class: "muted" }, `Means of the ${trained ? "runs" : "evaluations"}, each with the lowest and the highest.`),
    folded(`Each run (${series.runs.length})`, () =>
      el("div", null, series.runs.map((one) => runPanel(one, place, true))),
    ),
  );
}

// The evaluations of a series, and those of each run in a fold.
function evaluationsOfSeries(series, place, several) {
  const whole = evaluationTable(meanRun(series), place, several);
  if (series.runs.length === 1) return whole;
  return el(
    "div",
    null,
    whole,
    folded(`Each run (${series.runs.length})`, () =>
      el("div", null, series.runs.map((one) => evaluationTable(one, place, true))),
    ),
  );
}

function optionTables(runs) {
  return runs.map((run, place) => {
    const row = (name) => [el("code", null, name), run.config[name] ?? ""];
    const rest = Object.keys(run.config)
      .filter((name) => !run.differing.includes(name))
      .sort();
    const own = run.differing.filter((name) => name in run.config);
    return el(
      "div",
      { class: "options" },
      runs.length > 1 && el("h3", { class: "run-title" }, swatch(place), run.name),
      own.length
        ? table(`${plural(own.length, "option")} set by this run`, [["Option"], ["Value"]], own.map(row))
        : el("p", null, "Every option has its default."),
      folded(`${plural(rest.length, "option")} at the default`, () =>
        table("Options at their defaults", [["Option"], ["Value"]], rest.map(row)),
      ),
    );
  });
}

// The line of a series; of a chart with several lines each has another dash.
function swatch(place, line = 0) {
  const { hue, dash } = styleOf(place);
  return svg(
    "svg",
    { class: `swatch run-${hue} dash-${(dash + line) % 4}`, viewBox: "0 0 26 10", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: "line" }),
  );
}

function drawRuns(series) {
  const several = series.length > 1;
  byId("runs").replaceChildren(
    ...series.map((one, place) =>
      one.runs.length > 1 ? groupPanel(one, place, several) : runPanel(meanRun(one), place, several),
    ),
  );
  byId("evaluations").replaceChildren(...series.map((one, place) => evaluationsOfSeries(one, place, several)));
  byId("comparison").hidden = !several;
  const [first, ...others] = series.map(meanRun);
  byId("differences").replaceChildren(
    ...others.flatMap((other, at) => comparison(first, other, at + 1)).filter(Boolean),
  );
  byId("options").replaceChildren(...optionTables([first, ...others]));
}
