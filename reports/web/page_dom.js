// Elements, numbers and words. Text from a run reaches the page through these functions only: as text nodes and as
// attributes that hold no script.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const hidden = (text) => el("span", { class: "sr" }, text);

const MINUS = "\u2212";
const known = (value) => value !== null && value !== undefined;

function number(value, digits = 2) {
  return known(value) ? value.toFixed(digits).replace("-", MINUS) : "–";
}

function signed(value, digits = 2) {
  if (!known(value)) return "–";
  // A bound that is not 0 does not read 0: whether an interval excludes 0 must be seen.
  while (Number(value.toFixed(digits)) === 0 && Math.abs(value) > 1e-9) digits += 1;
  const text = number(value, digits);
  return value > 0 && Number(value.toFixed(digits)) !== 0 ? `+${text}` : text;
}

// A figure of unknown size, with three digits that count.
function figure(value) {
  if (!known(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", MINUS);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replaceAll("-", MINUS);
  return number(value, size >= 100 ? 0 : size >= 10 ? 1 : 3);
}

const percent = (value, digits = 1) => (known(value) ? `${number(100 * value, digits)}\u202f%` : "–");
const interval = (pair, digits = 1) =>
  pair ? `${number(100 * pair[0], digits)} to ${number(100 * pair[1], digits)}\u202f%` : "";
const span = (step, until) => (known(until) && until !== step ? `iterations ${step} to ${until}` : `iteration ${step}`);
const plural = (count, word, words = `${word}s`) => `${count} ${count === 1 ? word : words}`;
const spaced = (name) => name.replaceAll("_", " ");

function duration(seconds) {
  if (seconds < 90) return `${number(seconds, 1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A table: columns are [heading, is a number], rows are lists of texts or nodes; the first column heads its row.
function table(caption, columns, rows) {
  const head = columns.map(([name, numeric]) => el("th", { scope: "col", class: numeric && "num" }, name));
  const body = rows.map((cells) =>
    el(
      "tr",
      null,
      cells.map((cell, place) =>
        place === 0
          ? el("th", { scope: "row", class: columns[0][1] && "num" }, cell)
          : el("td", { class: columns[place][1] && "num" }, cell),
      ),
    ),
  );
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
    el(
      "table",
      null,
      el("caption", null, el("div", null, caption)),
      el("thead", null, el("tr", null, head)),
      el("tbody", null, body),
    ),
  );
}

// Contents that are made when somebody first looks at them: as soon as the fold is open. Its "toggle" event comes later,
// when the fold may already have been printed, searched or read.
const unmade = new WeakMap();
const opened = new MutationObserver((changes) => {
  for (const { target } of changes) {
    if (!target.open || !unmade.has(target)) continue;
    target.append(unmade.get(target)());
    unmade.delete(target);
  }
});
function folded(summary, make, attributes) {
  const details = el("details", attributes, el("summary", null, summary));
  unmade.set(details, make);
  opened.observe(details, { attributeFilter: ["open"] });
  return details;
}

// Whether the page is drawn, with the plots in its window: data-drawn of the root is "true" or "false".
const sayDrawn = (drawn) => {
  document.documentElement.dataset.drawn = String(drawn);
};

// What the reader chose before; a browser may refuse to remember, and then it is known until the page is closed.
const chosen = new Map();
const memory = {
  get(name) {
    try {
      return localStorage.getItem(`roleagent.${name}`) ?? chosen.get(name) ?? null;
    } catch {
      return chosen.get(name) ?? null;
    }
  },
  set(name, value) {
    chosen.set(name, value);
    try {
      localStorage.setItem(`roleagent.${name}`, value);
    } catch {
      /* only as long as the page is open */
    }
  },
};
