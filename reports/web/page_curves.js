// Small multiples: charts side by side over the same iterations, each with its numbers as a table.

function described(chart, name, lines, marks) {
  const say = (value) => (chart.percent ? percent(value) : figure(value));
  const along = lines.filter(filled).map((line) => {
    const values = line.y.filter(known);
    const range = `between ${say(Math.min(...values))} and ${say(Math.max(...values))}`;
    const name = line.name ? `${line.name}: ` : "";
    return `${name}${say(values[0])} at first, ${say(values.at(-1))} at last, ${range}`;
  });
  const measured = marks.map((mark) => `${say(mark.y)} held out at ${chart.axis} ${mark.step}`);
  return `${name}: ${[...along, ...measured].join("; ")}`;
}

function numbersOf(all, chart) {
  const say = (value) => (chart.percent ? percent(value) : figure(value));
  const column = (names, steps, values) => [
    names.filter(Boolean).join(", "),
    new Map(steps.map((step, at) => [step, values[at]])),
  ];
  const columns = all.flatMap((series) => {
    const lines = linesOf(chart, series)
      .filter(filled)
      .flatMap((line) =>
        [
          ["", line.y],
          ["lowest", line.low],
          ["highest", line.high],
        ]
          .filter(([, values]) => values)
          .map(([edge, values]) => column([series.name, spaced(line.name), edge], line.step, values)),
      );
    const marks = marksOf(chart, series);
    const steps = marks.map((mark) => mark.step);
    return marks.length
      ? [...lines, column([series.name, "held out"], steps, marks.map((mark) => mark.y))]
      : lines;
  });
  const steps = [...new Set(columns.flatMap(([, values]) => [...values.keys()]))].sort((a, b) => a - b);
  return table(
    [chart.title, chart.unit].filter(Boolean).join(", "),
    [[chart.axis === "update" ? "Update" : "Iteration", true], ...columns.map(([name]) => [name, true])],
    steps.map((step) => [
      String(step),
      ...columns.map(([, values]) => (known(values.get(step)) ? say(values.get(step)) : "")),
    ]),
  );
}

// One plot: drawn when it comes near the window, and again when data, theme or smoothing change. Its node is kept.
function plot(board, key, chart, label, lines, marks, trace, top) {
  const item = board.plots.get(key) ?? { node: el("div", { class: "plot", role: "img" }), seen: false };
  item.node.setAttribute("aria-label", described(chart, label, lines, marks));
  board.plots.set(key, Object.assign(item, { chart, trace, top }));
  board.watch.observe(item.node);
  return item.node;
}

function figureOf(board, chart, series) {
  const parts = [];
  const runs = series.flatMap((one) => one.runs);
  if (chart.stack) {
    const order = largest(runs, chart);
    const all = series.map((one) => layersOf(one, chart, order));
    const top =
      Math.max(
        ...all.map((layer) =>
          Math.max(
            0,
            ...(layer[0]?.step ?? []).map((_, at) => layer.reduce((sum, line) => sum + (line.y[at] ?? 0), 0)),
          ),
        ),
      ) * 1.05;
    all.forEach((layer, place) => {
      parts.push(
        el(
          "div",
          null,
          series.length > 1 && el("p", { class: "plot-run" }, swatch(place), series[place].name),
          plot(
            board,
            `${chart.key}/${place}`,
            chart,
            `${chart.title}, ${series[place].name}`,
            layer,
            [],
            () => stacked(layer),
            top,
          ),
        ),
      );
    });
    const last = all.map((layer) => layer.map((line) => line.y.filter(known).at(-1)));
    parts.push(
      el(
        "ul",
        { class: "layers", "aria-label": "Layers from top to bottom, with their newest values" },
        all[0]
          .map((line, at) =>
            el(
              "li",
              null,
              el("i", { class: `layer-${at % LAYERS}`, "aria-hidden": "true" }),
              el("span", null, line.name),
              " ",
              el("span", { class: "muted" }, last.map((values) => figure(values[at])).join(" / ")),
            ),
          )
          .reverse(),
      ),
    );
  } else {
    const lines = series.flatMap((one) =>
      linesOf(chart, one).map((line) => ({
        ...line,
        name: [series.length > 1 && one.name, spaced(line.name)].filter(Boolean).join(", "),
      })),
    );
    const marks = series.flatMap((one) => marksOf(chart, one));
    parts.push(
      plot(
        board,
        chart.key,
        { ...chart, band: chart.bandOf?.(runs) },
        chart.title,
        lines,
        marks,
        () => overlaid(series, chart, board.smooth),
      ),
    );
    const names = [...new Set(series.flatMap((one) => linesOf(chart, one).filter(filled).map((line) => line.name)))];
    if (names.filter(Boolean).length > 1)
      parts.push(
        el(
          "ul",
          { class: "layers", "aria-label": "Lines" },
          names.map((name, at) => el("li", null, swatch(0, at), spaced(name))),
        ),
      );
  }
  return el(
    "figure",
    { class: `chart${chart.stack ? " wide" : ""}${series.length > 1 ? " several" : ""}` },
    el("figcaption", null, el("h4", null, chart.title), chart.hint && el("p", null, chart.hint)),
    el("p", { class: "unit" }, chart.unit),
    el("div", { class: "plots" }, parts),
    folded(el("span", null, "Numbers", hidden(` of ${chart.title}`)), () => numbersOf(series, chart), {
      "data-keep": `numbers ${chart.key}`,
    }),
  );
}

function drawPlot(board, item) {
  item.seen = true;
  const span = item.chart.own ? undefined : (board.zoom ?? board.span);
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  Plotly.react(item.node, item.trace(), layout(item.chart, span, item.top), config);
  if (item.heard || item.chart.own) return;
  item.heard = true;
  item.node.on("plotly_relayout", (change) => {
    if (known(change["xaxis.range[0]"])) zoomTo(board, [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
  });
  item.node.on("plotly_doubleclick", () => {
    zoomTo(board, null);
  });
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

function drawCurves(board, series) {
  const runs = series.flatMap((one) => one.runs);
  board.watch?.disconnect();
  sayDrawn(false);
  const last = Math.max(1, ...runs.map((run) => run.training.step.at(-1) ?? 0));
  board.span = [-0.035 * last, 1.035 * last];
  board.watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const item = entry.isIntersecting && [...board.plots.values()].find((each) => each.node === entry.target);
        if (item && !item.seen) drawPlot(board, item);
      }
      sayDrawn(true);
    },
    { rootMargin: "300px" },
  );
  const axis = (chart) => (chart.own || runs.some(byUpdate) ? "update" : "iteration");
  const groups = CHARTS.map(([title, id, charts, lead]) => {
    // A title may occur in several groups, and two names may be written alike: the key is the chart's own.
    const keyed = (typeof charts === "string" ? NAMED[charts](runs) : charts).map((chart, at) => ({
      ...chart,
      axis: axis(chart),
      key: `${id}/${chart.name ?? at}`,
    }));
    const drawn = keyed.filter(
      (chart) =>
        (chart.needed?.(runs) ?? true) &&
        runs.some(
          (run) =>
            chart.lines(run).some((line) => filled(line) && (!chart.stack || line.y.some(Boolean))) ||
            (chart.marks?.(run) ?? []).length,
        ),
    );
    return (
      drawn.length > 0 &&
      el(
        "section",
        { class: "group", "aria-labelledby": `curves-${id}` },
        el("h3", { id: `curves-${id}` }, title),
        lead && el("p", { class: "muted" }, lead),
        el(
          "div",
          { class: "grid" },
          drawn.map((chart) => figureOf(board, chart, series)),
        ),
      )
    );
  }).filter(Boolean);
  byId("charts").replaceChildren(
    ...(groups.length ? groups : [el("p", { class: "muted" }, "No iteration has been logged yet.")]),
  );
  const mark = (place) =>
    svg(
      "svg",
      { viewBox: "0 0 14 20", class: `swatch mark ${seriesClass(place)}`, "aria-hidden": "true" },
      svg("line", { x1: 7, x2: 7, y1: 2, y2: 18, class: "whisker" }),
      svg("path", {
        d: styleOf(place).dash ? "M7 5 L12 10 L7 15 L2 10 Z" : "M3 10 a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0",
        class: "hollow",
      }),
    );
  byId("legend").replaceChildren(
    ...series.map((one, place) =>
      el("li", null, swatch(place), one.name, one.runs.length > 1 && el("span", { class: "muted" }, ` ${seedsOf(one)}`)),
    ),
    el(
      "li",
      null,
      el(
        "span",
        null,
        runs.length > series.length
          ? "line: mean of the seeds; band: from the lowest to the highest; both over five iterations"
          : "thin: each iteration; thick: mean of five around it",
      ),
    ),
    el(
      "li",
      null,
      series.map((_, place) => mark(place)),
      runs.length > series.length
        ? "held-out tasks: mean, lowest and highest; of a single run with 95 % interval"
        : "held-out tasks with 95 % interval",
    ),
    el("li", { class: "fine" }, "drag to zoom all charts, double click to go back"),
  );
  redraw(board);
  if (!groups.length) sayDrawn(true); // no plot will come into the window
}
