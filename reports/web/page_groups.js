// Runs that differ in nothing but their seed are one series: its lines are means, in a band from the lowest run to the
// highest.

const seriesOf = (runs, groups) =>
  groups.map((group) => ({
    name: group.name,
    seeds: group.seeds,
    places: group.runs,
    runs: group.runs.map((place) => runs[place]),
  }));

// Runs for which no groups were sent, each alone.
const alone = (runs) => runs.map((run, place) => ({ name: run.name, runs: [place], seeds: [run.seed] }));

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const range = (values) => [Math.min(...values), Math.max(...values)];

// Rows by key, in the order in which the keys come.
function byKey(rows, key) {
  const found = new Map();
  for (const row of rows) found.set(key(row), [...(found.get(key(row)) ?? []), row]);
  return found;
}

// The lines of a chart, with the band of a series of several runs as low and high.
function linesOf(chart, { runs }) {
  if (runs.length === 1) return chart.lines(runs[0]);
  const lines = runs.flatMap(chart.lines).filter((line) => line.y);
  return [...byKey(lines, (line) => line.name)].map(([name, same]) => {
    const points = same.flatMap((line) => line.step.map((step, at) => ({ step, y: line.y[at] })).filter((p) => known(p.y)));
    const steps = [...byKey(points, (point) => point.step)].sort((a, b) => a[0] - b[0]);
    const values = steps.map(([, here]) => here.map((point) => point.y));
    const ranges = values.map(range);
    return {
      name,
      step: steps.map(([step]) => step),
      y: values.map(mean),
      low: ranges.map(([low]) => low),
      high: ranges.map(([, high]) => high),
    };
  });
}

// The evaluations of a chart: of several runs their mean, with the lowest and the highest.
function marksOf(chart, { runs }) {
  const marks = runs.flatMap((run) => chart.marks?.(run) ?? []);
  if (runs.length === 1) return marks;
  return [...byKey(marks, (mark) => mark.step)]
    .sort((a, b) => a[0] - b[0])
    .map(([step, here]) => {
      const values = here.map((mark) => mark.y);
      return { step, y: mean(values), interval: range(values) };
    });
}

// The mean of some evaluations; its intervals span them.
function meanSummary(summaries) {
  const numbers = (pick) => summaries.map(pick).filter(known);
  const named = (field) => [...new Set(summaries.flatMap((one) => Object.keys(one[field] ?? {})))];
  const success = numbers((one) => one.success);
  const digests = new Set(summaries.map((one) => one.task_split?.digest));
  return {
    n: mean(numbers((one) => one.n)),
    success: mean(success),
    interval: range(success),
    reward: mean(numbers((one) => one.reward)),
    steps: mean(numbers((one) => one.steps)),
    prediction: mean(numbers((one) => one.prediction)),
    metrics: Object.fromEntries(
      named("metrics").map((name) => [name, { mean: mean(numbers((one) => one.metrics?.[name]?.mean)) }]),
    ),
    by_type: Object.fromEntries(
      named("by_type").map((type) => [type, meanSummary(summaries.map((one) => one.by_type?.[type]).filter(Boolean))]),
    ),
    task_split: digests.size === 1 ? summaries[0].task_split : undefined,
  };
}

// A series as one run: its evaluations are means, its gains those of its runs.
function meanRun(series) {
  const { runs } = series;
  if (runs.length === 1) return { ...runs[0], name: series.name };
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.evaluations)))];
  const measured = (name) => runs.map((run) => run.evaluations[name]).filter((one) => known(one?.success));
  const gainsOf = (type) => {
    const gains = runs.map((run) => gainOf(run, type)?.gain).filter(known);
    return gains.length ? { difference: mean(gains), interval: range(gains) } : null;
  };
  const types = typesOf(runs.flatMap((run) => Object.values(run.evaluations)));
  const all = gainsOf();
  return {
    ...runs[0],
    name: series.name,
    members: runs.length,
    steps: [Math.max(...runs.map((run) => run.steps[0])), Math.max(...runs.map((run) => run.steps[1]))],
    evaluations: Object.fromEntries(
      names.map((name) => [name, measured(name)]).filter(([, found]) => found.length).map(([name, found]) => [name, meanSummary(found)]),
    ),
    gain: all && {
      all,
      by_type: Object.fromEntries(types.map((type) => [type, gainsOf(type)]).filter(([, gain]) => gain)),
    },
  };
}

const seedsOf = (series) => `${plural(series.runs.length, "run")}, seeds ${series.seeds.join(", ")}`;

// Colors, dashes and markers of series: all forty are different, and the first four in each of the three.
const HUES = 10;
const styleOf = (place) => ({ hue: place % HUES, dash: (place + Math.floor(place / HUES)) % 4 });
const seriesClass = (place) => `run-${styleOf(place).hue} dash-${styleOf(place).dash}`;
