// Starts the page: data, theme, sections, keys, and news where somebody serves them.

const given = JSON.parse(byId("data").textContent);
const board = { plots: new Map(), smooth: true, zoom: null };
let stories = given.stories;

// Draws anew without taking the reader's place: what was open stays open, what had the focus keeps it.
function keepingPlace(draw) {
  const kept = (root) => [...root.querySelectorAll("details[open]")].map(nameOf);
  const nameOfFocus = document.activeElement?.tagName === "SUMMARY" ? nameOf(document.activeElement.parentElement) : null;
  const opened = new Set(kept(byId("main")));
  draw();
  for (const details of byId("main").querySelectorAll("details")) {
    if (!details.open && opened.has(nameOf(details))) details.open = true;
    if (nameOfFocus === nameOf(details) && document.activeElement === document.body) details.firstElementChild.focus({ preventScroll: true });
  }
}
const nameOf = (details) => {
  const section = details.closest("section[id], section[aria-labelledby]");
  return details.dataset.keep ?? `${section?.id} ${[...(section?.querySelectorAll("details") ?? [])].indexOf(details)}`;
};

function drawSections() {
  const links = [...document.querySelectorAll("main > section:not([hidden])")].map((section) =>
    el("li", null, el("a", { href: `#${section.id}` }, section.dataset.short)));
  byId("sections").replaceChildren(...links);
  const [played, here] = [stories.reduce((sum, story) => sum + story.episodes_recorded, 0), shelf.all.length];
  byId("episodes-lead").textContent = played > here ? `${here} of the ${played} training episodes that were recorded are in this report.` : "All recorded training episodes are in this report.";
}

function drawAll() {
  shelf.runs = stories.map((story) => story.name);
  drawRuns(stories);
  drawCurves(board, stories);
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
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !byId("keys").checked) return;
    if (event.key === "/") { event.preventDefault(); byId("search").focus(); byId("search").select(); }
    if (event.key === "j") step(1);
    if (event.key === "k") step(-1);
  });
}

// News of a run that is watched: asked for while somebody looks, and shown where it does not push things about.
function watch(address, seconds = 3) {
  const root = new URL(address, location.href);
  const asked = new Set();
  const say = (text) => { byId("live").hidden = false; if (byId("live").textContent !== text) byId("live").textContent = text; };
  const ask = async (url) => {
    const answer = await fetch(url, { cache: "no-store", credentials: "same-origin" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  };
  shelf.live = {
    iterations: stories[0].steps[0],
    async fetch(iteration) {
      if (asked.has(iteration)) return;
      asked.add(iteration);
      try {
        if (shelve(0, await ask(new URL(`episodes/${iteration}.json`, root)))) drawSections();
      } catch { asked.delete(iteration); }
    },
  };
  const take = (news) => {
    const changed = JSON.stringify(news.map((story) => ({ ...story, episodes: 0 }))) !== JSON.stringify(stories.map((story) => ({ ...story, episodes: 0 })));
    const fresh = news.reduce((sum, story, run) => sum + shelve(run, story.episodes), 0);
    stories = news;
    shelf.live.iterations = stories[0].steps[0];
    if (changed) keepingPlace(drawAll);
    if (fresh) { drawFilters(); offerNews(); }
  };
  let missing = 0;
  const offerNews = () => {
    if (!shelf.found.length && !shelf.asked.terms?.length) { search(); return; }
    missing = shelf.all.filter((episode) => matches(episode, shelf.asked)).length - shelf.found.length;
    if (missing > 0) byId("count").replaceChildren(el("button", { type: "button", class: "plain", click: () => { list(shelf.shown); byId("search").focus(); } }, `Show ${plural(missing, "new episode")}`));
  };
  const look = async () => {
    if (!document.hidden) {
      try {
        take((await ask(root)).stories);
        say(stories[0].state === "training" ? `Live: iteration ${stories[0].steps[0]} of ${stories[0].steps[1]}` : `Live: ${STATES[stories[0].state] ?? stories[0].state}`);
      } catch { say("Live: nobody answers; what is shown is the last that came"); }
    }
    setTimeout(look, 1000 * seconds);
  };
  say("Live");
  document.addEventListener("visibilitychange", () => { if (!document.hidden) byId("live").classList.toggle("seen"); });
  look();
}

stories.forEach((story, run) => shelve(run, story.episodes));
const theme = memory.get("theme");
setTheme(THEMES.includes(theme) ? theme : "system");
drawAll();
drawFilters();
search();
listenToKeys();
byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(memory.get("theme") ?? "system") + 1) % 3]));
byId("smooth").addEventListener("change", (event) => { board.smooth = event.target.checked; redraw(board); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(board));
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => { for (const item of board.plots.values()) if (!item.seen) drawPlot(board, item); });
follow();
if (given.live) watch(given.live);
