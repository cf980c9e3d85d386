// One turn of an episode: what was done, what was predicted and what came, and the credit that the turn got.

// As in reports/data/run_schema.py: what was read, the two things that were sampled, and what the world said where it is trained.
const PROMPT = 0,
  ACTION = 1,
  PREDICTION = 2,
  WORLD = 3;
const KINDS = ["prompt", "action", "prediction", "world"];

// A signed bar about the middle, and its number.
function bar(name, value, scale, title) {
  const width = known(value) && scale ? Math.min(50, (50 * Math.abs(value)) / scale) : 0;
  return el(
    "div",
    { class: "credit-row", title },
    el("dt", null, name),
    el(
      "dd",
      null,
      svg(
        "svg",
        { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", {
          x: value < 0 ? 50 - width : 50,
          width,
          y: 1,
          height: 8,
          class: value < 0 ? "negative" : "positive",
        }),
        svg("line", { x1: 50, x2: 50, y1: 0, y2: 10, class: "middle" }),
      ),
      el("span", { class: "value" }, signed(value)),
    ),
  );
}

// What turns of the same state are compared by.
const returnOf = (turn) =>
  turn.return_modulated ?? (known(turn.return_task) ? turn.return_task + (turn.return_others ?? 0) : null);

// The terms of an equation: +0.500 − 0.195, the first without a plus.
const summands = (values, digits) =>
  values.map((value, at) => (at ? `${value < 0 ? MINUS : "+"} ${number(Math.abs(value), digits)}` : number(value, digits)));

function credit(episode, turn, scale, twins) {
  const rows = [];
  const { config } = shelf.runs[episode.run];
  const say = (name, ...value) =>
    rows.push(el("div", { class: "credit-row" }, el("dt", null, name), el("dd", null, value)));
  if (known(turn.return_task)) {
    say(
      "Return",
      el("span", { title: "R_task: the discounted reward, before predictions count" }, number(turn.return_task, 3)),
      known(turn.return_predictive) &&
        known(turn.return_modulated) &&
        el(
          "span",
          {
            class: "muted",
            title: "R_pre: the discounted similarities of predictions; predictions without a score count with the mean",
          },
          `× (1 + ${number(turn.return_predictive, 4).replace(/0{1,2}$/, "")})`, // what is multiplied is not rounded
        ),
      Boolean(turn.return_others) &&
        el(
          "span",
          { title: "the discounted penalties and process rewards, which predictions do not multiply" },
          summands([0, turn.return_others], 3)[1],
        ),
      (known(turn.return_modulated) || Boolean(turn.return_others)) &&
        el("span", { title: "R: the return that is compared" }, "→ ", el("b", null, number(returnOf(turn), 3))),
    );
  }
  if (known(turn.state_group)) {
    say(
      "State",
      el(
        "button",
        {
          type: "button",
          class: "plain small",
          "aria-expanded": "false",
          click(event) {
            const button = event.currentTarget,
              shown = button.getAttribute("aria-expanded") === "true";
            button.setAttribute("aria-expanded", String(!shown));
            if (shown) button.closest(".turn").querySelector(".twins").remove();
            else button.closest(".turn").append(el("div", { class: "twins" }, twins()));
          },
        },
        `no. ${turn.state_group + 1}, ${plural(turn.state_group_size ?? 1, "turn")}`,
      ),
    );
  }
  const parts = advantageParts(turn, Number(config["estimator.alpha"] ?? 1));
  for (const [name, value, title] of parts) rows.push(bar(name, value, scale, title));
  const sum = parts.length ? parts.reduce((total, [, value]) => total + value, 0) : returnOf(turn);
  const estimate = turn.advantage_estimate;
  if (known(estimate) && !episode.replaced && Math.abs(estimate - (sum ?? 0)) > 1e-3)
    rows.push(
      config["train.shuffle"] === "advantages"
        ? bar("Shuffled", estimate, scale, "the advantage of another turn of the batch: train.shuffle=advantages")
        : bar("Estimate", estimate, scale, "what the critic expects beyond the turn's reward (GAE)"),
    );
  if (episode.whitening && known(estimate)) {
    const [mean, deviation] = episode.whitening;
    say(
      "Whitened",
      el(
        "span",
        { title: "the distance from the mean of the batch, in its deviations" },
        `(${summands([estimate, -mean], 3).join(" ")}) / ${number(deviation, 3)}`,
      ),
    );
  }
  if (known(turn.advantage))
    rows.push(bar(el("b", null, "Advantage"), turn.advantage, scale, "what the turn's tokens were trained with"));
  rewardRows(turn).forEach(([name, text]) => say(name, text));
  if (turn.usage) say("Tokens", usageText(turn.usage));
  return el("dl", { class: "credit" }, rows);
}

// The parts that an advantage is the sum of: A^S + α·A^E, or A^E alone.
function advantageParts(turn, alpha) {
  const weight = known(turn.advantage_state) ? alpha : 1;
  const outcome = weight === 1 ? "A outcome" : `${figure(weight)} × A outcome`;
  return [
    ["A state", turn.advantage_state, "A^S: against other turns taken in the same state"],
    [
      outcome,
      known(turn.advantage_outcome) ? weight * turn.advantage_outcome : null,
      "A^E: the episode against the others of its group",
    ],
  ].filter(([, value]) => known(value));
}

// The rewards of a turn: what was trained, weighted and in sum; and what the environment gave where that differs.
function rewardRows(turn) {
  const say = (rewards) => rewards.map(([name, value]) => `${spaced(name)} ${signed(value, 3)}`).join(", ");
  const trained = Object.entries(turn.reward);
  const given = Object.entries(turn.rewards).filter(([, value]) => value !== 0);
  const total = trained.reduce((sum, [, value]) => sum + value, 0);
  return [
    trained.length > 0 && ["Reward", say(trained) + (trained.length > 1 ? ` → ${signed(total, 3)}` : "")],
    given.length > 0 && JSON.stringify(given) !== JSON.stringify(trained) && ["Rewards given", say(given)],
  ].filter(Boolean);
}

// What a prompted model cost.
const usageText = (usage) =>
  `${plural(usage.answers, "answer")}, ${usage.prompt_tokens} read, ${usage.completion_tokens} written` +
  (usage.seconds ? `, ${number(usage.seconds, 1)} s` : "");

// A call as it would be written in Python.
const callText = ({ name, arguments: given }) =>
  `${name}(${Object.entries(given ?? {})
    .map(([key, value]) => `${key}=${JSON.stringify(value)}`)
    .join(", ")})`;

// What was done: calls are listed below, with their results.
function commandOf(turn) {
  if (turn.calls?.length) return [el("span", { class: "label" }, turn.calls.length > 1 ? "Calls" : "Call")];
  if (turn.answer) return [el("span", { class: "label" }, "Answer"), el("code", null, turn.answer)];
  return [turn.action ? el("code", null, turn.action) : el("em", { class: "muted" }, "a reply without a command")];
}

function callList(calls) {
  return el(
    "ol",
    { class: "calls" },
    calls.map((call) =>
      el(
        "li",
        null,
        el(
          "p",
          { class: "command" },
          el("code", null, callText(call)),
          call.error && el("span", { class: "chip bad" }, spaced(call.error)),
          known(call.reward) && el("span", { class: "chip" }, `reward ${signed(call.reward, 2)}`),
        ),
        el("p", { class: "text said" }, call.result),
      ),
    ),
  );
}

const PROMPT_SHOWN = 60;
function tokenList(turn) {
  const count = (kind) => turn.tokens.filter((token) => token[1] === kind).length;
  const least = turn.tokens.reduce((low, token) => Math.min(low, token[2]), 0);
  const list = el("ol", { class: "tokens" });
  const write = (tokens) =>
    tokens.map(([text, kind, logprob]) => {
      const sure = Math.exp(logprob);
      const sampled = kind === ACTION || kind === PREDICTION;
      const words =
        kind === PROMPT
          ? "read, not trained"
          : kind === WORLD
            ? "said by the world, trained as well"
            : `${KINDS[kind]}, log-probability ${number(logprob, 3)}, probability ${number(sure, 3)}`;
      const shown = text.replaceAll("\n", "↵\n");
      return el(
        "li",
        { class: `t-${KINDS[kind]}${sampled && sure < 0.2 ? " unsure" : ""}`, title: words },
        shown,
        kind !== PROMPT && hidden(` (${words})`),
      );
    });
  // Runs of read tokens say one thing; a long one is cut in its middle.
  for (let at = 0; at < turn.tokens.length;) {
    let end = at;
    while (end < turn.tokens.length && (turn.tokens[end][1] === PROMPT) === (turn.tokens[at][1] === PROMPT)) end += 1;
    const run = turn.tokens.slice(at, end);
    if (run[0][1] !== PROMPT) list.append(...write(run));
    else if (run.length <= PROMPT_SHOWN) list.append(...write([[run.map(([text]) => text).join(""), PROMPT, 0]]));
    else {
      const text = (part) => part.map(([piece]) => piece).join("");
      const middle = run.slice(PROMPT_SHOWN / 3, -PROMPT_SHOWN / 2);
      const item = el(
        "li",
        null,
        el(
          "button",
          {
            type: "button",
            class: "plain small",
            click(event) {
              event.currentTarget.closest("li").replaceWith(...write([[text(middle), PROMPT, 0]]));
            },
          },
          `… ${plural(middle.length, "token")} more …`,
        ),
      );
      list.append(
        ...write([[text(run.slice(0, PROMPT_SHOWN / 3)), PROMPT, 0]]),
        item,
        ...write([[text(run.slice(-PROMPT_SHOWN / 2)), PROMPT, 0]]),
      );
    }
    at = end;
  }
  const key = (kind, name) => count(kind) > 0 && el("span", { class: `t-${KINDS[kind]}` }, `${name} ${count(kind)}`);
  return el(
    "div",
    null,
    el(
      "p",
      { class: "token-key" },
      [
        key(PROMPT, "read"),
        key(ACTION, "action"),
        key(PREDICTION, "prediction"),
        key(WORLD, "world, trained"),
        el("span", { class: "unsure" }, "probability below 0.2"),
        el("span", { class: "muted" }, `least log-probability ${number(least, 2)}; point at a token for its own`),
      ]
        .filter(Boolean)
        .flatMap((part) => [part, " "]),
    ),
    list,
  );
}

function turnItem(episode, turn, at, scale, twins) {
  const critical = episode.analysis?.critical_step === at;
  const first = turn.predictions.find((prediction) => prediction.horizon === 1);
  const shownAlready = first && first.actual === turn.observation; // the observation stands beside its prediction
  return el(
    "li",
    { class: critical ? "turn critical" : "turn", id: `t-${episode.key}-${at}`, tabindex: -1 },
    el(
      "div",
      { class: "turn-head" },
      el("h4", null, `Turn ${at + 1}`),
      critical && el("span", { class: "chip bad" }, "critical step"),
      turn.trial > 1 && el("span", { class: "chip" }, `trial ${turn.trial}`),
    ),
    el(
      "div",
      { class: "turn-main" },
      el(
        "p",
        { class: "command" },
        ...commandOf(turn),
        turn.format_error && el("span", { class: "chip bad" }, `format: ${spaced(turn.format_error)}`),
        turn.valid === false && el("span", { class: "chip warn" }, "did nothing"),
      ),
      turn.thoughts && folded("Thoughts", () => el("p", { class: "text said" }, turn.thoughts)),
      turn.reply && folded("Whole reply", () => el("p", { class: "text said" }, turn.reply)),
      turn.calls?.length > 0 && callList(turn.calls),
      !shownAlready &&
        !turn.calls?.length &&
        el(
          "div",
          { class: "said" },
          el("p", { class: "label" }, "Observed"),
          el("p", { class: "text" }, turn.observation),
        ),
      turn.predictions.slice(0, 1).map(predictionPair),
      turn.predictions.length > 1 &&
        folded(
          el(
            "span",
            null,
            `Further ahead (${turn.predictions
              .slice(1)
              .map((prediction) => number(prediction.score))
              .join(", ")})`,
            hidden(` of turn ${at + 1}`),
          ),
          () => el("div", { class: "further" }, turn.predictions.slice(1).map(predictionPair)),
        ),
      turn.tokens &&
        folded(
          el("span", null, `Tokens and mask (${turn.tokens.length})`, hidden(` of turn ${at + 1}`)),
          () => tokenList(turn),
          { class: "token-fold" },
        ),
    ),
    credit(episode, turn, scale, twins),
  );
}
