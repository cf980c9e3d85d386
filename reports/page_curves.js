// Small multiples: every chart has a title in words, a unit, what to look for, and its numbers as a table.

const of = (key) => (story) => [{ name: "", step: story.training.step, y: story.training.values[key] }];
const shareOf = (key, whole) => (story) => {
  const { values, step } = story.training;
  return [{ name: "", step, y: values[key]?.map((value, at) => (known(value) && values[whole]?.[at] ? value / values[whole][at] : null)) }];
};
const evaluated = (pick, between) => (story) => evaluationsOf(story)
  .map(([, step, summary]) => ({ step, y: pick(summary), interval: between?.(summary) }))
  .filter((mark) => known(mark.y));
const layers = (key) => (story) => Object.entries(story[key].values).map(([name, y]) => ({ name, step: story[key].step, y }));
const SHARE = { range: [0, 1], percent: true };

const CHARTS = [
  ["Does it learn?", "success", [
    { title: "Success", unit: "share of episodes won", ...SHARE, lines: of("success"), marks: evaluated((s) => s.success, (s) => s.interval),
      hint: "Should rise and stay up. Held-out tasks far below the line: over-fitting." },
    { title: "Predictive reward", unit: "similarity, 0 to 1", range: [0, 1], lines: of("prediction_score"), marks: evaluated((s) => s.prediction),
      hint: "How alike predicted and actual observations are. Rising: the model learns its world." },
    { title: "Reward", unit: "mean of an episode", lines: of("reward"), marks: evaluated((s) => s.reward),
      hint: "The task's own reward. It parts from success where there is partial credit.",
      needed: (stories) => stories.some((story) => filled(of("reward")(story)[0]) || evaluationsOf(story).some(([, , s]) => Math.abs(s.reward - s.success) > 1e-9)) },
    { title: "Length of episodes", unit: "turns", lines: of("turns"), marks: evaluated((s) => s.steps),
      hint: "Falls when tasks are solved sooner. A rise to the limit means wandering." },
  ]],
  ["Success by type of task", "types", "types", "Share of episodes won. Types that stay low are what the policy cannot do yet. Lines bridge iterations in which no such task was played."],
  ["Rewards by name", "rewards", "rewards", "Mean sum of an episode, by the terms that estimator.rewards weighs. A term that only one trick raises is being gamed."],
  ["Is there something to learn from?", "signal", [
    { title: "Dead groups", unit: "share of groups", ...SHARE, lines: shareOf("dead_groups", "groups"),
      hint: "Groups whose episodes all ended alike teach nothing. Near 100 % the batch is wasted." },
    { title: "Turns in shared states", unit: "share of turns", ...SHARE, lines: of("state_group_share"),
      hint: "Turns that others of the same state are compared with. Low: A^S is mostly 0." },
    { title: "Returns modulated", unit: "turns in an iteration", lines: of("returns_modulated"),
      hint: "Returns that a prediction multiplied. 0 means that predictions change nothing." },
    { title: "Entropy", unit: "nats a token", lines: of("entropy"),
      hint: "How freely it chooses. A fall to 0 without success is collapse, a steep rise noise." },
    { title: "Invalid actions", unit: "share of turns", ...SHARE, lines: of("invalid_action_share"),
      hint: "Commands that were not understood or did nothing. Should fall." },
    { title: "Episodes going round", unit: "share of episodes", ...SHARE, lines: of("repeated_actions"),
      hint: "Episodes that repeat the same turns. A rise comes before collapse." },
  ]],
  ["Is the optimisation sound?", "optimisation", [
    { title: "Loss", unit: "policy objective, negated", lines: of("loss"), hint: "Hovers about 0; only jumps matter." },
    { title: "KL to the reference", unit: "nats a token", lines: of("kl"), hint: "Distance from the first policy. Grows slowly; 0 where loss.kl is off." },
    { title: "Mismatch of sampler and learner", unit: "nats a token", lines: of("mismatch"),
      hint: "What the two say of the same tokens. Above some hundredths, updates are biased." },
    { title: "Clipped tokens", unit: "share of tokens", ...SHARE, range: null, lines: of("clip_fraction"), hint: "Above a tenth or so, steps are too large." },
    { title: "Norm of the gradient", unit: "before clipping", lines: of("grad_norm"), hint: "Spikes go with broken batches." },
  ]],
  ["Agent-In-World", "aiw", [
    { title: "Failure library", unit: "entries", stack: true, lines: layers("modes"), hint: "Grows by mode of failure. One mode alone: the analyst sees no difference." },
    { title: "Failures filed", unit: "in an iteration", stack: true, lines: layers("mode_failures"), hint: "Fewer as the policy improves; modes that stay are what it cannot do yet." },
    { title: "Tasks from the failure library", unit: "share of sampled tasks", ...SHARE, lines: of("curriculum_share"),
      hint: "Near curriculum.epsilon once there are failures. 0: the curriculum does nothing." },
    { title: "Reflections read as written", unit: "share of reflections", ...SHARE, lines: of("curriculum_reflections_valid_share"),
      hint: "The rest was repaired or fell back to text search." },
  ]],
  ["Where does the time go?", "time", [
    { title: "Time", unit: "seconds an iteration", stack: true, lines: layers("time"), hint: "The thickest layer is what to make faster." },
    { title: "Sampling speed", unit: "tokens a second", lines: of("tokens_per_second"), hint: "A fall goes with longer contexts or a busy machine." },
  ]],
  ["Warm start", "warmstart", "warmstart", "Nats a token, by update, on demonstrations. Should fall and flatten out."],
];

// The charts that only a run itself can name.
const NAMED = {
  types: (stories) => namesIn(stories, "success_by_type").map((type) => ({
    title: spaced(type), unit: "", ...SHARE,
    lines: (story) => [{ name: "", step: story.success_by_type.step, y: story.success_by_type.values[type] }],
    marks: evaluated((s) => s.by_type?.[type]?.success, (s) => s.by_type?.[type]?.interval) })),
  rewards: (stories) => namesIn(stories, "training").filter((name) => name.startsWith("reward_")).map((name) => ({
    title: spaced(name.slice(7)), unit: "", lines: of(name) })),
  warmstart: (stories) => ["loss", "action_loss", "prediction_loss", "text_loss"].map((name) => ({
    title: spaced(name), unit: "", own: true,
    lines: (story) => [{ name: "", step: story.warmstart.step, y: story.warmstart.values[name] }] })),
};
const namesIn = (stories, key) => [...new Set(stories.flatMap((story) => Object.keys(story[key].values)))].sort();

const WIDTH = 5;
// Mean over the iteration and two on either side; the ends have fewer neighbours.
function smoothed(values) {
  return values.map((value, at) => {
    const near = values.slice(Math.max(0, at - 2), at + 3).filter(known);
    return known(value) && near.length ? near.reduce((sum, each) => sum + each, 0) / near.length : null;
  });
}

const LAYERS = 8;
// The largest layers by name, the rest as one; the same names in the same order for every run.
function largest(stories, chart) {
  const sums = new Map();
  for (const line of stories.flatMap(chart.lines)) sums.set(line.name, (sums.get(line.name) ?? 0) + line.y.reduce((sum, y) => sum + (y ?? 0), 0));
  const names = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).map(([name]) => name);
  return names.length > LAYERS ? { names: names.slice(0, LAYERS - 1), rest: names.slice(LAYERS - 1) } : { names, rest: [] };
}

function layersOf(story, chart, { names, rest }) {
  const lines = chart.lines(story);
  const found = (name) => lines.find((line) => line.name === name)?.y;
  const step = lines[0]?.step ?? [];
  const layer = names.map((name) => ({ name: spaced(name), step, y: found(name) ?? step.map(() => 0) }));
  if (rest.length) layer.push({ name: `${rest.length} others`, step, y: step.map((_, at) => rest.reduce((sum, name) => sum + (found(name)?.[at] ?? 0), 0)) });
  return layer;
}

const filled = (line) => line.y?.some(known);
// A colour of the style sheet as this theme has it, "rgb(…)": the plots are painted, not styled.
const probe = el("span", { hidden: true });
document.body.append(probe);
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MARKERS = ["circle", "diamond", "square", "triangle-up"];
// Plotly reads a little HTML in texts; names that a model chose are plain.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const faint = (rgb) => rgb.replace("rgb(", "rgba(").replace(")", ", 0.45)");

function overlaid(stories, chart, smooth) {
  const traces = [];
  const beside = 0.02 * Math.max(1, ...stories.map((story) => story.training.step.at(-1) ?? 0)); // marks of two runs at one iteration
  stories.forEach((story, place) => {
    const own = colour(`run-${place % 4}`);
    const dash = DASHES[place % 4];
    const name = plain(story.name);
    for (const line of chart.lines(story).filter(filled)) {
      const shape = { x: line.step, type: "scatter", mode: line.y.filter(known).length > 1 ? "lines" : "markers", connectgaps: true, name, marker: { color: own, size: 5 } };
      if (smooth && line.step.length > WIDTH) {
        traces.push({ ...shape, y: line.y, line: { color: faint(own), width: 1, dash }, hovertemplate: "%{y:.4~g}" },
          { ...shape, y: smoothed(line.y), line: { color: own, width: 2.2, dash }, hoverinfo: "skip" });
      } else traces.push({ ...shape, y: line.y, line: { color: own, width: 1.8, dash }, hovertemplate: "%{y:.4~g}" });
    }
    const marks = chart.marks?.(story) ?? [];
    if (marks.length) traces.push({
      x: marks.map((mark) => mark.step + (place - (stories.length - 1) / 2) * beside), y: marks.map((mark) => mark.y), name: `${name}, held out`, type: "scatter", mode: "markers",
      marker: { color: colour("surface"), size: 8, symbol: MARKERS[place % 4], line: { color: own, width: 2 } }, hovertemplate: "%{y:.4~g}",
      error_y: marks.some((mark) => mark.interval) ? { type: "data", symmetric: false, color: own, thickness: 1.4, width: 4,
        array: marks.map((mark) => (mark.interval ? mark.interval[1] - mark.y : 0)), arrayminus: marks.map((mark) => (mark.interval ? mark.y - mark.interval[0] : 0)) } : undefined,
    });
  });
  return traces;
}

const stacked = (layer) => layer.map((line, at) => ({
  x: line.step, y: line.y, name: plain(line.name), type: "scatter", mode: "lines", stackgroup: "all", hovertemplate: "%{y:.4~g}",
  line: { width: 1, color: colour("surface") }, fillcolor: colour(`layer-${at % LAYERS}`),
}));

function layout(chart, span, top) {
  const axis = { gridcolor: colour("grid"), zeroline: false, linecolor: colour("edge"), tickfont: { size: 11 }, ticks: "", fixedrange: true };
  return {
    height: 190, margin: { l: 46, r: 8, t: 6, b: 30 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("muted") }, hovermode: "x unified", dragmode: chart.own || matchMedia("(pointer: coarse)").matches ? false : "zoom",
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("edge"), font: { color: colour("text"), size: 12 }, namelength: -1 },
    xaxis: { ...axis, range: span, fixedrange: Boolean(chart.own), hoverformat: "d", nticks: 6, unifiedhovertitle: { text: chart.own ? "update %{x}" : "iteration %{x}" } },
    yaxis: { ...axis, tickformat: chart.percent ? ".0%" : "~g", nticks: 5, rangemode: chart.stack ? "tozero" : "normal",
      range: chart.range ? [chart.range[0] - 0.02, chart.range[1] + 0.02] : top ? [0, top] : undefined, autorange: !chart.range && !top },
  };
}

function told(chart, name, lines, marks) {
  const say = (value) => (chart.percent ? percent(value) : figure(value));
  const along = lines.filter(filled).map((line) => {
    const values = line.y.filter(known);
    return `${line.name ? `${line.name}: ` : ""}${say(values[0])} at first, ${say(values.at(-1))} at last, between ${say(Math.min(...values))} and ${say(Math.max(...values))}`;
  });
  const measured = marks.map((mark) => `${say(mark.y)} held out at iteration ${mark.step}`);
  return `${name}: ${[...along, ...measured].join("; ")}`;
}

function numbersOf(stories, chart) {
  const say = (value) => (chart.percent ? percent(value) : figure(value));
  const columns = stories.flatMap((story) => [
    ...chart.lines(story).filter(filled).map((line) => [[story.name, spaced(line.name)].filter(Boolean).join(", "), new Map(line.step.map((step, at) => [step, line.y[at]]))]),
    ...((marks) => (marks.length ? [[`${story.name}, held out`, new Map(marks.map((mark) => [mark.step, mark.y]))]] : []))(chart.marks?.(story) ?? []),
  ]);
  const steps = [...new Set(columns.flatMap(([, values]) => [...values.keys()]))].sort((a, b) => a - b);
  return table([chart.title, chart.unit].filter(Boolean).join(", "), [[chart.own ? "Update" : "Iteration", true], ...columns.map(([name]) => [name, true])],
    steps.map((step) => [String(step), ...columns.map(([, values]) => (known(values.get(step)) ? say(values.get(step)) : ""))]));
}

// One plot: drawn when it comes near the window, and again when data, theme or smoothing change. New data keep its node.
function plot(board, key, chart, label, lines, marks, trace, top) {
  const item = board.plots.get(key) ?? { node: el("div", { class: "plot", role: "img" }), seen: false };
  item.node.setAttribute("aria-label", told(chart, label, lines, marks));
  board.plots.set(key, Object.assign(item, { chart, trace, top }));
  board.watch.observe(item.node);
  return item.node;
}

function figureOf(board, chart, stories) {
  const parts = [];
  if (chart.stack) {
    const order = largest(stories, chart);
    const all = stories.map((story) => layersOf(story, chart, order));
    const top = Math.max(...all.map((layer) => Math.max(0, ...(layer[0]?.step ?? []).map((_, at) => layer.reduce((sum, line) => sum + (line.y[at] ?? 0), 0))))) * 1.05;
    all.forEach((layer, place) => {
      parts.push(el("div", null, stories.length > 1 && el("p", { class: "plot-run" }, swatch(place), stories[place].name), plot(board, `${chart.title} ${place}`, chart, `${chart.title}, ${stories[place].name}`, layer, [], () => stacked(layer), top)));
    });
    const last = all.map((layer) => layer.map((line) => line.y.filter(known).at(-1)));
    parts.push(el("ul", { class: "layers", "aria-label": "Layers from top to bottom, with their newest values" },
      all[0].map((line, at) => el("li", null, el("i", { class: `layer-${at % LAYERS}`, "aria-hidden": "true" }), el("span", null, line.name), " ",
        el("span", { class: "muted" }, last.map((values) => figure(values[at])).join(" / ")))).reverse()));
  } else {
    const lines = stories.flatMap((story) => chart.lines(story).map((line) => ({ ...line, name: stories.length > 1 ? story.name : "" })));
    const marks = stories.flatMap((story) => chart.marks?.(story) ?? []);
    parts.push(plot(board, chart.title, chart, chart.title, lines, marks, () => overlaid(stories, chart, board.smooth)));
  }
  return el("figure", { class: `chart${chart.stack ? " wide" : ""}${stories.length > 1 ? " several" : ""}` },
    el("figcaption", null, el("h4", null, chart.title), chart.hint && el("p", null, chart.hint)),
    el("p", { class: "unit" }, chart.unit),
    el("div", { class: "plots" }, parts),
    folded(el("span", null, "Numbers", hidden(` of ${chart.title}`)), () => numbersOf(stories, chart), { "data-keep": `numbers ${chart.title}` }));
}

function drawPlot(board, item) {
  item.seen = true;
  const span = item.chart.own ? undefined : board.zoom ?? board.span;
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  Plotly.react(item.node, item.trace(), layout(item.chart, span, item.top), config);
  if (item.heard || item.chart.own) return;
  item.heard = true;
  item.node.on("plotly_relayout", (change) => {
    if (known(change["xaxis.range[0]"])) zoomTo(board, [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
  });
  item.node.on("plotly_doubleclick", () => { zoomTo(board, null); });
}

// All charts of iterations show the same stretch of the run.
function zoomTo(board, range) {
  board.zoom = range;
  for (const item of board.plots.values()) {
    if (item.seen && !item.chart.own) Plotly.relayout(item.node, { "xaxis.range": [...(range ?? board.span)] });
  }
}

function redraw(board) {
  for (const item of board.plots.values()) if (item.seen) drawPlot(board, item);
}

function drawCurves(board, stories) {
  board.watch?.disconnect();
  const last = Math.max(1, ...stories.map((story) => story.training.step.at(-1) ?? 0));
  board.span = [-0.02 * last, 1.03 * last];
  board.watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const item = entry.isIntersecting && [...board.plots.values()].find((each) => each.node === entry.target);
      if (item && !item.seen) drawPlot(board, item);
    }
  }, { rootMargin: "300px" });
  const groups = CHARTS.map(([title, id, charts, lead]) => {
    const drawn = (typeof charts === "string" ? NAMED[charts](stories) : charts).filter((chart) =>
      (chart.needed?.(stories) ?? true) && stories.some((story) => chart.lines(story).some((line) => filled(line) && (!chart.stack || line.y.some(Boolean))) || (chart.marks?.(story) ?? []).length));
    return drawn.length > 0 && el("section", { class: "group", "aria-labelledby": `curves-${id}` },
      el("h3", { id: `curves-${id}` }, title), lead && el("p", { class: "muted" }, lead), el("div", { class: "grid" }, drawn.map((chart) => figureOf(board, chart, stories))));
  }).filter(Boolean);
  byId("charts").replaceChildren(...(groups.length ? groups : [el("p", { class: "muted" }, "No iteration has been logged yet.")]));
  const mark = (place) => svg("svg", { viewBox: "0 0 14 20", class: `swatch mark run-${place % 4}`, "aria-hidden": "true" },
    svg("line", { x1: 7, x2: 7, y1: 2, y2: 18, class: "whisker" }), svg("path", { d: place % 4 ? "M7 5 L12 10 L7 15 L2 10 Z" : "M3 10 a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0", class: "hollow" }));
  byId("legend").replaceChildren(
    ...stories.map((story, place) => el("li", null, swatch(place), story.name)),
    el("li", null, el("span", null, "thin: each iteration; thick: mean of five around it")),
    el("li", null, stories.map((_, place) => mark(place)), "held-out tasks with 95 % interval"),
    el("li", { class: "fine" }, "drag to zoom all charts, double click to go back"));
  redraw(board);
}
