// Numbers as what the plotting library draws: lines, layers, marks with intervals, axes.

const WIDTH = 5;
// Mean over the iteration and two on either side; the ends have fewer neighbors.
function smoothed(values) {
  return values.map((value, at) => {
    const near = values.slice(Math.max(0, at - 2), at + 3).filter(known);
    return known(value) && near.length ? near.reduce((sum, each) => sum + each, 0) / near.length : null;
  });
}

const LAYERS = 8;
// The largest layers by name, the rest as one; the same names in the same order for every run.
function largest(runs, chart) {
  const sums = new Map();
  for (const line of runs.flatMap(chart.lines))
    sums.set(line.name, (sums.get(line.name) ?? 0) + line.y.reduce((sum, y) => sum + (y ?? 0), 0));
  const names = [...sums]
    .filter(([, sum]) => sum > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([name]) => name);
  return names.length > LAYERS
    ? { names: names.slice(0, LAYERS - 1), rest: names.slice(LAYERS - 1) }
    : { names, rest: [] };
}

function layersOf(series, chart, { names, rest }) {
  const lines = linesOf(chart, series);
  const found = (name) => lines.find((line) => line.name === name)?.y;
  const step = lines[0]?.step ?? [];
  const layer = names.map((name) => ({ name: spaced(name), step, y: found(name) ?? step.map(() => 0) }));
  if (rest.length)
    layer.push({
      name: `${rest.length} others`,
      step,
      y: step.map((_, at) => rest.reduce((sum, name) => sum + (found(name)?.[at] ?? 0), 0)),
    });
  return layer;
}

const filled = (line) => line.y?.some(known);
// A color of the style sheet as this theme has it, "rgb(…)": the plots are painted, not styled.
const probe = el("span", { hidden: true });
document.body.append(probe);
function color(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MARKERS = ["circle", "diamond", "square", "triangle-up"];
// Plotly reads a little HTML in texts; names that a model chose are plain.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const faint = (rgb, share = 0.45) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);

function overlaid(all, chart, smooth) {
  const traces = [];
  // Marks of two series at the same iteration stand beside each other.
  const last = Math.max(1, ...all.flatMap(({ runs }) => runs.map((run) => run.training.step.at(-1) ?? 0)));
  const beside = Math.min(0.02, 0.12 / all.length) * last;
  all.forEach((series, place) => {
    const style = styleOf(place);
    const own = color(`run-${style.hue}`);
    linesOf(chart, series).filter(filled).forEach((line, at) => {
      const name = plain([series.name, spaced(line.name)].filter(Boolean).join(", "));
      const dash = DASHES[(style.dash + at) % 4];
      const hovertemplate = line.low ? "%{y:.4~g} (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})" : "%{y:.4~g}";
      const averaged = smooth && line.step.length > WIDTH;
      const seen = averaged ? smoothed : (values) => values;
      if (line.low) {
        const edge = { x: line.step, type: "scatter", mode: "lines", name, line: { width: 0 }, hoverinfo: "skip" };
        const fill = { fill: "tonexty", fillcolor: faint(own, 0.18) };
        traces.push({ ...edge, y: seen(line.low) }, { ...edge, ...fill, y: seen(line.high) });
      }
      const shape = {
        x: line.step,
        type: "scatter",
        mode: line.y.filter(known).length > 1 ? "lines" : "markers",
        connectgaps: true,
        name,
        customdata: line.low?.map((low, number) => [low, line.high[number]]),
        marker: { color: own, size: 5 },
      };
      if (averaged) {
        traces.push(
          { ...shape, y: line.y, line: { color: faint(own), width: line.low ? 0 : 1, dash }, hovertemplate },
          { ...shape, y: smoothed(line.y), line: { color: own, width: 2.2, dash }, hoverinfo: "skip" },
        );
      } else traces.push({ ...shape, y: line.y, line: { color: own, width: 1.8, dash }, hovertemplate });
    });
    const marks = marksOf(chart, series);
    if (marks.length)
      traces.push({
        x: marks.map((mark) => mark.step + (place - (all.length - 1) / 2) * beside),
        y: marks.map((mark) => mark.y),
        name: `${plain(series.name)}, held out`,
        type: "scatter",
        mode: "markers",
        marker: { color: color("surface"), size: 8, symbol: MARKERS[style.dash], line: { color: own, width: 2 } },
        hovertemplate: "%{y:.4~g}",
        error_y: marks.some((mark) => mark.interval)
          ? {
              type: "data",
              symmetric: false,
              color: own,
              thickness: 1.4,
              width: 4,
              array: marks.map((mark) => (mark.interval ? mark.interval[1] - mark.y : 0)),
              arrayminus: marks.map((mark) => (mark.interval ? mark.y - mark.interval[0] : 0)),
            }
          : undefined,
      });
  });
  return traces;
}

const stacked = (layer) =>
  layer.map((line, at) => ({
    x: line.step,
    y: line.y,
    name: plain(line.name),
    type: "scatter",
    mode: "lines",
    stackgroup: "all",
    hovertemplate: "%{y:.4~g}",
    line: { width: 1, color: color("surface") },
    fillcolor: color(`layer-${at % LAYERS}`),
  }));

function layout(chart, span, top) {
  const axis = {
    gridcolor: color("grid"),
    zeroline: false,
    linecolor: color("edge"),
    tickfont: { size: 11 },
    ticks: "",
    fixedrange: true,
  };
  return {
    height: 190,
    margin: { l: 46, r: 8, t: 6, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("muted") },
    hovermode: "x unified",
    dragmode: chart.own || matchMedia("(pointer: coarse)").matches ? false : "zoom",
    hoverlabel: {
      bgcolor: color("surface"),
      bordercolor: color("edge"),
      font: { color: color("text"), size: 12 },
      namelength: -1,
    },
    xaxis: {
      ...axis,
      range: span,
      fixedrange: Boolean(chart.own),
      hoverformat: "d",
      nticks: 6,
      dtick: span && span[1] - span[0] < 7 ? 1 : undefined,
      unifiedhovertitle: { text: `${chart.axis} %{x}` },
    },
    shapes: chart.band
      ? [
          {
            type: "rect",
            xref: "paper",
            x0: 0,
            x1: 1,
            y0: chart.band[0],
            y1: chart.band[1],
            fillcolor: faint(color("grid")),
            line: { width: 0 },
            layer: "below",
          },
        ]
      : [],
    yaxis: {
      ...axis,
      tickformat: chart.percent ? (chart.range ? ".0%" : "~%") : "~g",
      nticks: 5,
      rangemode: chart.stack || chart.base ? "tozero" : "normal",
      range: chart.range ? [chart.range[0] - 0.02, chart.range[1] + 0.02] : top ? [0, top] : undefined,
      autorange: !chart.range && !top,
    },
  };
}
