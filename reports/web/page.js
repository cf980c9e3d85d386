// Starts the page: data, theme, sections, keys, and news where a server has them.

const given = JSON.parse(byId("data").textContent);
const board = { plots: new Map(), smooth: true, zoom: null };
let runs = given.runs;
let groups = given.groups;

// Draws anew without taking the reader's place: what was open stays open, what had the focus keeps it.
function keepingPlace(draw) {
  const kept = (root) => [...root.querySelectorAll("details[open]")].map(nameOf);
  const nameOfFocus =
    document.activeElement?.tagName === "SUMMARY" ? nameOf(document.activeElement.parentElement) : null;
  const opened = new Set(kept(byId("main")));
  draw();
  for (const details of byId("main").querySelectorAll("details")) {
    if (!details.open && opened.has(nameOf(details))) details.open = true;
    if (nameOfFocus === nameOf(details) && document.activeElement === document.body)
      details.firstElementChild.focus({ preventScroll: true });
  }
}
const nameOf = (details) => {
  const section = details.closest("section[id], section[aria-labelledby]");
  return details.dataset.keep ?? `${section?.id} ${[...(section?.querySelectorAll("details") ?? [])].indexOf(details)}`;
};

function drawSections() {
  const links = [...document.querySelectorAll("main > section:not([hidden])")].map((section) =>
    el("li", null, el("a", { href: `#${section.id}` }, section.dataset.short)),
  );
  byId("sections").replaceChildren(...links);
  const here = shelf.all.length;
  const played = runs.every((run) => known(run.episodes_recorded))
    ? runs.reduce((sum, run) => sum + run.episodes_recorded, 0)
    : null;
  const what = runs.every((run) => run.kind === "evaluation") ? "episode" : "training episode";
  byId("episodes-lead").textContent =
    here === 0 && !played
      ? `No ${what} has been recorded yet.`
      : played === null
        ? `${plural(here, what)} of those that were recorded are in this report.`
        : played > here
          ? `${here} of the ${played} ${what}s that were recorded are in this report.`
          : `All recorded ${what}s are in this report.`;
}

function drawAll() {
  byId("curves").hidden = runs.every((run) => run.kind === "evaluation");
  const series = seriesOf(runs, groups);
  shelf.runs = runs;
  shelf.places = runs.map((_, number) => series.findIndex((one) => one.places.includes(number)));
  drawRuns(series);
  drawCurves(board, series);
  drawSuite(runs);
  drawLessons(runs);
  drawTasks(runs);
  drawRevisions(runs);
  drawSections();
}

const THEMES = ["system", "light", "dark"];
function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
  memory.set("theme", name);
  redraw(board);
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox]), select");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !byId("keys").checked) return;
    if (event.key === "/") {
      event.preventDefault();
      byId("search").focus();
      byId("search").select();
    }
    if (event.key === "j") step(1);
    if (event.key === "k") step(-1);
  });
}

// News of a run that is watched: asked for while the page is visible, and shown where it does not push things about.
function watch(address, seconds = 3) {
  const root = new URL(address, location.href);
  const here = new Set(); // iterations of which all episodes came
  let stamp = "",
    timer = 0,
    looking = false;
  const say = (text) => {
    byId("live").hidden = false;
    if (byId("live").textContent !== text) byId("live").textContent = text;
  };
  shelf.live = {
    iterations: runs[0].steps[0],
    async fetch(iteration) {
      if (here.has(iteration)) return;
      const answer = await fetch(new URL(`episodes/${iteration}.json`, root), { cache: "no-store" }).catch(() => null);
      if (!answer?.ok) {
        say("Live: the episodes of that iteration could not be loaded");
        return;
      }
      const cards = await answer.json();
      if (cards.length) here.add(iteration);
      if (shelve(0, cards)) drawSections();
    },
  };
  const bare = (list) => JSON.stringify(list.map((run) => ({ ...run, episodes: null })));
  const take = (news, together) => {
    const changed = bare(news) !== bare(runs);
    const fresh = news.reduce((sum, run, place) => sum + shelve(place, run.episodes), 0);
    runs = news;
    groups = together ?? alone(news);
    shelf.live.iterations = runs[0].steps[0];
    if (changed) keepingPlace(drawAll);
    if (changed || fresh) drawFilters();
    if (fresh) offerNews();
  };
  const look = async () => {
    clearTimeout(timer);
    timer = setTimeout(look, 1000 * seconds);
    if (document.hidden || looking) return;
    looking = true;
    const answer = await fetch(root, { cache: "no-store", headers: stamp ? { "If-None-Match": stamp } : {} }).catch(
      () => null,
    );
    const news = answer?.ok ? await answer.json().catch(() => null) : null;
    looking = false;
    if (!news && answer?.status !== 304) {
      say("Live: the server does not answer; these are the last data");
      return;
    }
    if (news) {
      take(news.runs, news.groups);
      stamp = answer.headers.get("ETag") ?? "";
    }
    const { state, steps } = runs[0];
    say(`Live: ${STATES[state] ?? state}, iteration ${steps[0]} of ${steps[1]}`);
  };
  document.addEventListener("visibilitychange", look);
  look();
}

// New episodes wait until the reader asks for them, unless there is nothing to read yet.
function offerNews() {
  const waiting = shelf.all.filter((episode) => matches(episode, shelf.asked)).length - shelf.found.length;
  if (waiting <= 0) return;
  if (!shelf.found.length) list(0);
  else
    byId("news").replaceChildren(
      el(
        "button",
        {
          type: "button",
          class: "plain",
          click: () => {
            list(shelf.shown);
            byId("cards").querySelector("button").focus();
          },
        },
        `Show ${plural(waiting, "new episode")}`,
      ),
    );
}

runs.forEach((run, place) => shelve(place, run.episodes));
const theme = memory.get("theme");
setTheme(THEMES.includes(theme) ? theme : "system");
drawAll();
makeFilters();
drawFilters();
search();
listenToKeys();
byId("theme").addEventListener("click", () =>
  setTheme(THEMES[(THEMES.indexOf(memory.get("theme") ?? "system") + 1) % 3]),
);
byId("smooth").addEventListener("change", (event) => {
  board.smooth = event.target.checked;
  redraw(board);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(board));
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => {
  for (const item of board.plots.values()) if (!item.seen) drawPlot(board, item);
});
follow();
if (given.live) watch(given.live);
