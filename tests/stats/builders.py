"""Made-up tokens with planted effects, in the shape of `Study.tokens()`."""

import numpy as np
import xarray as xr

KINDS = ("connective", "digit", "format", "operator")


def made_up_tokens(
    *,
    seed=0,
    problems=30,
    group=4,
    length=(20, 40),
    frames=2,
    families=3,
    scenario="placebo_like",
    effect=0.05,
    generators=("a", "b"),
    neutral=True,
):
    """Tokens of `problems` x `group` rollouts under base, verdict, placebo and neutral.

    scenario  placebo_like  the verdict's contrast is noise, as every placebo's
              signal        the verdict's contrast rises with the reward
              style         the verdict's contrast rises with the generator's style and nothing else
    """
    rng = np.random.default_rng(seed)
    rollouts = problems * group
    lengths = rng.integers(length[0], length[1] + 1, rollouts)
    owner = np.repeat(np.arange(rollouts), lengths)
    total = int(lengths.sum())
    problem = np.repeat(np.arange(problems), group)
    writer = np.arange(rollouts) % len(generators)
    accuracy = np.linspace(0.3, 0.7, len(generators))
    reward = (rng.random(rollouts) < accuracy[writer]).astype(float)
    logp = np.log(rng.beta(2.0, 0.7, total).clip(1e-6, 1 - 1e-6))
    p = np.exp(logp)
    square_sum = p**2 + (1 - p) ** 2 * rng.random(total)
    distance = np.sqrt((1 - p) ** 2 + square_sum - p**2)
    planted = {
        "placebo_like": np.zeros(rollouts),
        "signal": effect * (2 * reward - 1),
        "style": effect * (writer - np.mean(writer)),
    }[scenario][owner]

    names, labels, rows = (
        ["base"],
        [("base", "base", "none", "none", "none", "none", "user_end")],
        [logp],
    )
    paragraph = 0.3 * rng.normal(size=total) - 0.05

    def add(name, label, shift):
        names.append(name)
        labels.append(label)
        rows.append(logp + shift)

    groups = [("opposed", "verdict", planted)]
    groups += [("placebo", f"placebo-{i}", np.zeros(total)) for i in range(families)]
    for probe, family, extra in groups:
        for frame in range(frames):
            middle = (paragraph + 0.1 * rng.normal(size=total)) * distance
            half = (0.05 * rng.standard_t(5, size=total) + extra) * distance
            for level, sign in (("pos", 1), ("neg", -1)):
                label = (probe, family, level, f"f{frame}", "w0", "none", "user_end")
                add(f"{family}.f{frame}.{level}", label, middle + sign * half)
    if neutral:
        label = ("neutral", "neutral", "none", "f0", "w0", "none", "user_end")
        add("neutral.f0", label, (paragraph + 0.1 * rng.normal(size=total)) * distance)

    values = np.stack(rows).astype(np.float32)
    fields = ("probe", "family", "level", "frame", "wording", "tone", "placement")
    shape = values.shape
    return xr.Dataset(
        {
            "logp": (("condition", "token"), values),
            "entropy": (("condition", "token"), np.ones(shape, np.float32)),
            "p_max": (("condition", "token"), np.full(shape, 0.5, np.float32)),
            "p_square_sum": (
                ("condition", "token"),
                np.broadcast_to(square_sum.astype(np.float32), shape).copy(),
            ),
            "comparable": (("condition", "rollout"), np.ones((len(names), rollouts), bool)),
            "length": (("rollout",), lengths.astype(np.int32)),
        },
        coords={
            "condition": names,
            **{f: ("condition", [label[i] for label in labels]) for i, f in enumerate(fields)},
            "kind": ("token", rng.choice(KINDS, total)),
            "problem": ("token", problem[owner]),
            "cluster": ("token", problem[owner]),
            "rollout": ("token", owner),
            "reward": ("token", reward[owner]),
            "generator": ("token", np.array(generators)[writer][owner]),
            "step": ("token", np.zeros(total, np.int32)),
            "token_id": ("token", rng.integers(0, 100, total).astype(np.int32)),
        },
        attrs={"scored_by": "made up", "sampled_by": "made up too", "off_policy": 1},
    )


def with_steps(tokens, *, size=4, planted=None, seed=0):
    """The same tokens in steps of `size`, a wrong step in every response of reward 0.

    planted  name of a shift to raise on the tokens of wrong steps: "verdict" moves both levels of
             every verdict pair by .5 nats apart, "surprisal" takes 1 nat from all conditions
    """
    rng = np.random.default_rng(seed)
    owner = tokens.rollout.values
    start = np.flatnonzero(np.diff(owner, prepend=-1))
    length = tokens.length.values
    step = (np.arange(owner.size) - start[owner]) // size
    count = -(-length // size)
    wrong = np.where(tokens.reward.values[start] == 0, rng.integers(0, count), -1)
    tokens = tokens.assign_coords(step=("token", step.astype(np.int32)))
    tokens["wrong_step"] = ("rollout", wrong.astype(np.int32))
    tokens["label"] = ("rollout", np.where(wrong >= 0, "error", "no_error"))
    at = step == wrong[owner]
    logp = tokens.logp.values
    if planted == "surprisal":
        logp[:, at] -= 1.0
    if planted == "verdict":
        for row in np.flatnonzero(tokens.family.values == "verdict"):
            logp[row, at] += 0.5 if tokens.level.values[row] == "pos" else -0.5
    return tokens
