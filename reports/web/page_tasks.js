// What a task simulator wrote: how well the tasks fit the agent, which were refused, and how each was played.

// The success rates that train the simulator, of the first run that has any.
function bandOf(runs) {
  const { config } = runs.find((run) => run.written_tasks) ?? runs[0];
  const [alpha, least, size] = ["simulator.alpha", "simulator.k_min", "rollout.group_size"].map((name) =>
    Number(config[name]),
  );
  const half = Math.max(least, 1 / size);
  return Number.isFinite(alpha + half) ? [Math.max(0, alpha - half), Math.min(1, alpha + half)] : undefined;
}

const onTasks = (kind, title, hint) => ({
  title,
  unit: "share of episodes won",
  ...SHARE,
  bandOf,
  lines: of(`genenv_${kind}_success`),
  hint,
});

CHARTS.splice(CHARTS.findIndex(([, id]) => id === "time"), 0, [
  "GenEnv",
  "genenv",
  [
    onTasks("fresh", "Success on newly written tasks", "Should come into the shaded band, and stay in it."),
    onTasks("replayed", "Success on tasks played again", "Above the newly written ones: what was hard is learned."),
    onTasks("base", "Success on tasks of the split", "For comparison: these tasks stay the same."),
    onTasks("probe_initial", "Success on tasks of the simulator as it began", "Rises as the agent learns."),
    onTasks("probe_present", "Success on tasks of the present simulator", "By the same weights; nearer to the band."),
    {
      title: "Newly written tasks that are live",
      unit: "share of tasks",
      ...SHARE,
      lines: of("genenv_fresh_live"),
      hint: "Solved neither always nor never. Only these teach the agent.",
    },
    {
      title: "Newly written tasks in the band",
      unit: "share of tasks",
      ...SHARE,
      lines: of("genenv_fresh_in_band"),
      hint: "Only these train the simulator. 0: it learns nothing.",
    },
    {
      title: "Distance to the initial simulator",
      unit: "nats",
      base: true,
      lines: of("genenv_kl"),
      hint: "0 means that the simulator does not learn.",
    },
    {
      title: "Proposals that differ",
      unit: "share of the readable proposals",
      ...SHARE,
      lines: of("genenv_distinct_share"),
      hint: "A fall is collapse: the simulator writes the same again and again.",
    },
    {
      title: "Refused proposals",
      unit: "in an iteration",
      stack: true,
      lines: (run) =>
        Object.entries(run.training.values)
          .filter(([name]) => name.startsWith("genenv_refused_") && !name.includes("/")) // of all environments
          .map(([name, y]) => ({ name: name.slice("genenv_refused_".length), step: run.training.step, y })),
      hint: "By reason. Refused proposals are never played.",
    },
  ],
]);

// A share with a bar behind it: the longer, the larger.
const shaded = (share) =>
  known(share)
    ? el("span", { class: "shade", style: `--share:${(100 * share).toFixed(1)}%` }, percent(share, 0))
    : "–";

// A frozen suite: a row per failure mode, a column per iteration.
function suiteOf(run) {
  const iterations = Object.keys(run.suite.all);
  const cell = (row) =>
    row
      ? [
          shaded(row.solved / row.tasks),
          row.forgotten > 0 && el("span", { class: "muted" }, ` −${row.forgotten}`),
          row.regained > 0 && el("span", { class: "muted" }, ` +${row.regained}`),
        ]
      : "–";
  return table(
    "Share of the suite's tasks that are solved, by failure mode and iteration",
    [["Failure mode"], ["Tasks", true], ...iterations.map((iteration) => [iteration, true])],
    Object.entries(run.suite).map(([mode, rows]) => [
      spaced(mode),
      String(Math.max(...Object.values(rows).map((row) => row.tasks))),
      ...iterations.map((iteration) => cell(rows[iteration])),
    ]),
  );
}

// Which lessons of earlier failures the prompts held, and how such episodes went.
function lessonsOf(run) {
  const share = (value) => (known(value) ? percent(value) : "–");
  return table(
    "Lessons by the number of episodes that read them",
    [
      ["Lesson"],
      ["Episodes", true],
      ["Tasks", true],
      ["Success", true],
      ["Compared", true],
      ["With", true],
      ["Without", true],
      ["Difference in points", true],
    ],
    run.lessons.map((use) => [
      use.lesson === "" ? el("strong", null, "any lesson") : use.lesson,
      String(use.episodes),
      String(use.tasks),
      share(use.success),
      String(use.compared),
      share(use.success_with),
      share(use.success_without),
      pointsInterval(use.interval) || "–",
    ]),
  );
}

function drawLessons(runs) {
  const read = runs.filter((run) => run.lessons);
  byId("lessons").hidden = !read.length;
  byId("lesson-uses").replaceChildren(...titled(runs, read, (run) => [lessonsOf(run)]));
}

function drawSuite(runs) {
  const played = runs.filter((run) => run.suite);
  byId("suite").hidden = !played.length;
  byId("suite-modes").replaceChildren(...titled(runs, played, (run) => [suiteOf(run)]));
}

function lifeOf(task) {
  const rate = (play) => `${play.successes}/${play.attempts}`;
  return task.plays.map((play, at) => [
    at > 0 && " → ",
    el("span", { class: "muted" }, `${play.iteration}${play.kind === "replayed" ? ", again" : ""}: `),
    rate(play),
  ]);
}

function tasksOf(run) {
  const tasks = run.written_tasks;
  const reasons = Object.entries(tasks.refused).map(([reason, count]) => `${spaced(reason)} ${count}`);
  const parts = tasks.thirds.map(([first, last]) => [span(first, last), true]);
  return [
    el(
      "p",
      null,
      `${plural(tasks.proposed, "task")} proposed, ${tasks.accepted} accepted`,
      reasons.length > 0 && `; refused: ${reasons.join(", ")}`,
      ".",
    ),
    table(
      "Share of the written tasks with each value, by part of the run, and success when first played",
      [["Value"], ...parts, ["Success", true], ["Tasks", true]],
      tasks.fields.map((row) => [
        el("code", null, `${row.field}=${row.value}`),
        ...row.shares.map(shaded),
        percent(row.success, 0),
        String(row.tasks),
      ]),
    ),
    folded(`How ${plural(tasks.lives.length, "task")} were played`, () =>
      table(
        "Tasks that were played most often: successes of attempts, by iteration",
        [["Task"], ["Written in", true], ["Plan", true], ["Played"]],
        tasks.lives.map((task) => [
          [el("code", null, task.line), task.varied && el("span", { class: "muted" }, " one field changed")],
          String(task.iteration),
          String(task.plan),
          lifeOf(task),
        ]),
      ),
    ),
    tasks.refusals.length > 0 &&
      folded(`The newest ${plural(tasks.refusals.length, "refused proposal")}`, () =>
        table(
          "Refused proposals",
          [["Iteration", true], ["Reason"], ["Proposal"]],
          tasks.refusals.map((one) => [String(one.iteration), spaced(one.reason), el("code", null, one.line)]),
        ),
      ),
  ].filter(Boolean);
}

// What is made of some runs, each below its name if there are several.
const titled = (runs, some, make) =>
  some.flatMap((run) => [
    ...(runs.length > 1 ? [el("h3", { class: "run-title" }, swatch(shelf.places[runs.indexOf(run)]), run.name)] : []),
    ...make(run),
  ]);

function drawTasks(runs) {
  const wrote = runs.filter((run) => run.written_tasks);
  byId("written").hidden = !wrote.length;
  byId("written-tasks").replaceChildren(...titled(runs, wrote, tasksOf));
}
