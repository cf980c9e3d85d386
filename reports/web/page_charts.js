// Which charts there are: each has a title in words, a unit, and a sentence on what to look for.

const of = (key) => (run) => [{ name: "", step: run.training.step, y: run.training.values[key] }];
// The same figure of the curriculum's tasks and of the uniformly drawn ones.
const chosenAndUniform = (name) => (run) =>
  ["curriculum", "uniform"].map((kind) => ({
    name: kind,
    step: run.training.step,
    y: run.training.values[`${kind}_${name}`],
  }));
const shareOf = (keys, whole) => (run) => {
  const { values, step } = run.training;
  const [first, ...others] = [keys].flat().map((key) => values[key]);
  const sum = first?.map((value, at) => (known(value) ? others.reduce((all, more) => all + (more?.[at] ?? 0), value) : null));
  return [
    { name: "", step, y: sum?.map((value, at) => (known(value) && values[whole]?.[at] ? value / values[whole][at] : null)) },
  ];
};
const FAILED_CALLS = ["tool_errors", "timeouts", "unknown_tool", "bad_arguments", "malformed", "not_run"];
const evaluated = (pick, between) => (run) =>
  evaluationsOf(run)
    .map(([, iteration, summary]) => ({
      step: stepOf(run, iteration),
      y: pick(summary),
      interval: between?.(summary),
    }))
    .filter((mark) => known(mark.y));
const layers = (key) => (run) =>
  Object.entries(run[key].values).map(([name, y]) => ({ name, step: run[key].step, y }));
const SHARE = { range: [0, 1], percent: true };

const CHARTS = [
  [
    "Does it learn?",
    "success",
    [
      {
        title: "Success",
        unit: "share of episodes won",
        ...SHARE,
        lines: of("success"),
        marks: evaluated(
          (s) => s.success,
          (s) => s.interval,
        ),
        hint: "Should rise and stay up. Held-out tasks far below the line: over-fitting.",
      },
      {
        title: "Predictive reward",
        unit: "similarity, 0 to 1",
        range: [0, 1],
        lines: of("prediction_score"),
        marks: evaluated((s) => s.prediction),
        hint: "Similarity of predicted and actual observations. A rise means that the model learns the environment.",
      },
      {
        title: "Reward",
        unit: "mean of an episode",
        lines: of("reward"),
        marks: evaluated((s) => s.reward),
        hint: "The task's own reward. It differs from success where partial credit is given.",
        needed: (runs) =>
          runs.some(
            ({ training: { values }, evaluations }) =>
              Object.values(evaluations).some((s) => Math.abs(s.reward - s.success) > 1e-9) ||
              values.reward?.some((reward, at) => known(reward) && Math.abs(reward - (values.success?.[at] ?? 0)) > 1e-9),
          ),
      },
      {
        title: "Episode length",
        unit: "turns",
        lines: of("turns"),
        marks: evaluated((s) => s.steps),
        hint: "Falls when tasks are solved sooner. A rise to the limit means wandering.",
      },
      {
        title: "Turn limit",
        unit: "turns",
        base: true,
        lines: of("turn_limit"),
        hint: "Most turns of an episode, by rollout.turns. Episodes should be solved within it before it rises.",
      },
      {
        title: "Episodes ended by the turn limit",
        unit: "share of episodes",
        ...SHARE,
        lines: of("turn_limit_share"),
        hint: "Near 100 % the limit is too low: nothing but failures is learned from.",
      },
      {
        title: "Reply length",
        unit: "tokens",
        lines: of("reply_tokens"),
        hint: "Mean length of an action reply, thoughts included.",
      },
    ],
  ],
  [
    "Success by task type",
    "types",
    "types",
    "Share of episodes won. Types that stay low are not learned yet. Lines bridge iterations without such a task.",
  ],
  [
    "Rewards by name",
    "rewards",
    "rewards",
    "Mean sum of an episode, by the terms that estimator.rewards weighs. A term that rises alone may be exploited.",
  ],
  [
    "Are tools used well?",
    "tools",
    [
      {
        title: "Calls",
        unit: "calls of an episode",
        base: true,
        lines: of("calls_per_episode"),
        hint: "A rise far beyond what the tasks need means calls for their own sake.",
      },
      {
        title: "Answers",
        unit: "share of episodes",
        ...SHARE,
        lines: of("answer_rate"),
        hint: "Episodes with tools that ended with an answer. The others ran out of turns.",
      },
      {
        title: "Failed calls",
        unit: "share of calls",
        ...SHARE,
        lines: shareOf(FAILED_CALLS, "calls"),
        hint: "Malformed calls, those that were not run, and those that a tool refused or did not answer in time.",
      },
      {
        title: "The world in the loss",
        unit: "share of the loss's weight",
        ...SHARE,
        lines: of("world_loss_share"),
        needed: (runs) =>
          runs.some(({ training: { values } }) => values.calls_per_episode || values.world_loss_share?.some(Boolean)),
        hint: "Exactly 0 unless loss.action_mask is off.",
      },
    ],
  ],
  [
    "Is there a learning signal?",
    "signal",
    [
      {
        title: "Zero-variance groups",
        unit: "share of groups",
        ...SHARE,
        lines: shareOf("zero_variance_groups", "groups"),
        hint: "Groups whose episodes all end with the same reward give no advantage. Near 100 % the batch is wasted.",
      },
      {
        title: "Groups filtered out",
        unit: "share of groups",
        ...SHARE,
        lines: shareOf("filtered_groups", "groups"),
        hint: "By rollout.keep_groups, those with the least variance of rewards. They do not train the policy.",
      },
      {
        title: "Turns in shared states",
        unit: "share of turns",
        ...SHARE,
        lines: of("state_group_share"),
        hint: "Turns that share their state with another turn. If low, A^S is mostly 0.",
      },
      {
        title: "Returns modulated",
        unit: "turns in an iteration",
        base: true,
        lines: of("returns_modulated"),
        hint: "Returns multiplied by a prediction score. 0 means that predictions have no effect.",
        needed: (runs) => runs.some((run) => run.training.values.prediction_score?.some(known)),
      },
      {
        title: "Returns changed by process rewards",
        unit: "share of turns",
        ...SHARE,
        lines: of("returns_changed"),
        hint: "Turns whose return the rewards tool and process changed. 0 means that they have no effect.",
      },
      {
        title: "Prediction score and success",
        unit: "correlation over turns",
        lines: of("prediction_correlation"),
        hint: "Correlation over all turns. Easy states raise both, so see the next chart.",
      },
      {
        title: "Prediction score and success, within a state",
        unit: "correlation within task and state",
        lines: of("prediction_information"),
        hint: "Within each task and state, where the state advantage compares. Below 0.1 the scores say next to nothing.",
      },
      {
        title: "Failures predicted",
        unit: "share of failed commands with a prediction",
        ...SHARE,
        lines: of("failure_recall"),
        hint: "Failed commands whose answer was predicted exactly. 0: predictions cannot say that a command fails.",
      },
      {
        title: "Other next states predicted",
        unit: "share of valid commands with a prediction",
        ...SHARE,
        lines: of("prediction_accuracy_valid"),
        hint: "Valid commands whose next state was predicted exactly. Pages too long for a prediction never are.",
      },
      {
        title: "Entropy",
        unit: "nats a token",
        base: true,
        lines: of("entropy"),
        hint: "Entropy of the policy. A fall to 0 without success is collapse; a steep rise is noise.",
      },
      {
        title: "Mutual information of task and reply",
        unit: "nats a reply",
        base: true,
        lines: (run) => [
          ...of("task_information")(run),
          { ...of("task_information_limit")(run)[0], name: "most" },
        ],
        hint: "How much a reply says about its prompt, among those of up to 16 tasks. A fall at steady entropy: replies become the same for every task.",
      },
      {
        title: "Replies recognized",
        unit: "share of replies",
        ...SHARE,
        lines: of("task_recognized"),
        hint: "Replies that are most probable behind their own prompt. By chance it is one divided by the number of prompts.",
      },
      {
        title: "Invalid actions",
        unit: "share of turns",
        ...SHARE,
        lines: of("invalid_action_share"),
        hint: "Commands that were not understood or had no effect. Should fall.",
      },
      {
        title: "Repeating episodes",
        unit: "share of episodes",
        ...SHARE,
        lines: of("repeated_actions"),
        hint: "Episodes that repeat the same turns. It rises before collapse.",
      },
    ],
  ],
  [
    "Is the optimization stable?",
    "optimization",
    [
      {
        title: "Loss",
        unit: "policy objective, negated",
        lines: of("loss"),
        hint: "Watch for jumps; the size itself has little meaning.",
      },
      {
        title: "Loss of predictions",
        unit: "nats a token",
        base: true,
        lines: of("prediction_loss"),
        hint: "Of the states that came, with loss.prediction_credit=imitate. Should fall and stay down.",
      },
      {
        title: "KL to the reference",
        unit: "nats a token",
        lines: of("kl"),
        needed: (runs) => runs.some((run) => run.training.values.kl?.some(Boolean)),
        hint: "Distance from the first policy. Grows slowly; 0 where loss.kl is off.",
      },
      {
        title: "Mismatch of sampler and learner",
        unit: "nats a token",
        base: true,
        lines: of("mismatch"),
        hint: "Difference of log-probabilities of the same tokens. Above a few hundredths, updates are biased.",
      },
      {
        title: "Clipped tokens",
        unit: "share of tokens",
        percent: true,
        base: true,
        lines: of("clip_fraction"),
        hint: "Above a tenth or so, steps are too large.",
      },
      {
        title: "Gradient norm",
        unit: "before clipping",
        base: true,
        lines: of("grad_norm"),
        hint: "Spikes point to broken batches.",
      },
    ],
  ],
  [
    "Agent-In-World",
    "aiw",
    [
      {
        title: "Failure library",
        unit: "entries",
        stack: true,
        lines: layers("modes"),
        hint: "Entries by failure mode. A single mode means that the analyst does not distinguish failures.",
      },
      {
        title: "Failures filed",
        unit: "in an iteration",
        stack: true,
        lines: layers("mode_failures"),
        hint: "Fewer as the policy improves; modes that stay are not learned yet.",
      },
      {
        title: "Tasks from the failure library",
        unit: "share of sampled tasks",
        ...SHARE,
        lines: of("curriculum_share"),
        hint: "Near curriculum.epsilon once there are failures. 0 means that the curriculum has no effect.",
      },
      {
        title: "Zero-variance groups",
        unit: "share of groups, by how the task was drawn",
        ...SHARE,
        lines: chosenAndUniform("zero_variance_share"),
        hint: "Groups whose episodes all end with the same reward. The curriculum's line should not be above the other.",
      },
      {
        title: "Success by choice of task",
        unit: "share of episodes won, by how the task was drawn",
        ...SHARE,
        lines: chosenAndUniform("success"),
        hint: "If the lines coincide, the curriculum's tasks are like uniformly drawn ones.",
      },
      {
        title: "Retrievals from the same iteration",
        unit: "share of retrievals",
        ...SHARE,
        lines: of("curriculum_same_iteration_share"),
        hint: "1 at first, when nothing older is filed, then near 0. High: the curriculum replays the last batch.",
      },
      {
        title: "Retrievals of the failed task itself",
        unit: "in an iteration",
        base: true,
        lines: of("curriculum_self_retrievals"),
        hint: "0: the failing task is no candidate.",
      },
      {
        title: "Reflections in the requested format",
        unit: "share of reflections",
        ...SHARE,
        lines: of("curriculum_reflections_valid_share"),
        hint: "The others were repaired or replaced by text search.",
      },
    ],
  ],
  [
    "Time",
    "time",
    [
      {
        title: "Time",
        unit: "seconds an iteration",
        stack: true,
        lines: layers("time"),
        hint: "Seconds per iteration, by part.",
      },
      {
        title: "Sampling speed",
        unit: "tokens a second",
        lines: of("tokens_per_second"),
        hint: "Sampled tokens per second of the whole rollout, with the worlds. Longer contexts or a busy machine lower it.",
      },
      {
        title: "Update speed",
        unit: "share of the GPU's peak (MFU)",
        lines: of("mfu"),
        hint: "Larger micro-batches (optim.micro_batch_tokens) raise it. Attention's products are not counted.",
      },
    ],
  ],
  ["Warm start", "warmstart", "warmstart", "Nats per token, by update, on demonstrations. Should fall and level off."],
];

// The charts that only a run itself can name.
const NAMED = {
  types: (runs) =>
    namesIn(runs, "success_by_type").map((type) => ({
      name: type,
      title: spaced(type),
      unit: "",
      ...SHARE,
      lines: (run) => [{ name: "", step: run.success_by_type.step, y: run.success_by_type.values[type] }],
      marks: evaluated(
        (s) => s.by_type?.[type]?.success,
        (s) => s.by_type?.[type]?.interval,
      ),
    })),
  rewards: (runs) =>
    namesIn(runs, "training")
      .filter((name) => name.startsWith("reward_"))
      .map((name) => ({
        name,
        title: spaced(name.slice(7)),
        unit: "",
        lines: of(name),
      })),
  warmstart: (runs) =>
    ["loss", "action_loss", "prediction_loss", "text_loss"].map((name) => ({
      name,
      title: spaced(name),
      unit: "",
      own: true,
      lines: (run) => [{ name: "", step: run.warmstart.step, y: run.warmstart.values[name] }],
    })),
};
const namesIn = (runs, key) => [...new Set(runs.flatMap((run) => Object.keys(run[key].values)))].sort();
