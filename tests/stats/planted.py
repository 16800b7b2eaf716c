"""Tokens as a policy of a known kind would have them, in the shape of `Study.tokens()`.

Sizes of the effects are those measured on tiny policies (`shared/notes/tinymodel.md`, section 3).
"""

import numpy as np
import xarray as xr

FIELDS = ("probe", "family", "level", "frame", "wording", "tone", "placement")
# kind -> (truth, style): how strongly the verdict acts on digits, and on words.
STRENGTHS = {
    "truthful": (1.0, 0.0),
    "style": (0.0, 1.0),
    "mixed": (0.6, 1.0),
    "placebo": (0.0, 0.0),
    "shuffled": (1.0, 0.0),
    "random": (0.0, 0.0),
}
VOCABULARY = 70


def planted_tokens(
    kind, *, seed=0, problems=60, group=8, frames=3, families=3, accuracy=0.5, strengths=None
):
    """Tokens of `problems` x `group` rollouts of a policy of a kind, 24 to 40 tokens each.

    A token is a word (free in style), a digit (nearly certain), or something between. Half the
    rollouts go wrong at one digit. Whatever is said, each word and each frame moves every token a
    little, the more the less certain it is.
    """
    rng = np.random.default_rng(seed)
    truth, style = strengths or STRENGTHS[kind]
    rollouts = problems * group
    length = rng.integers(24, 41, rollouts)
    owner = np.repeat(np.arange(rollouts), length)
    total = owner.size
    reward = (rng.random(rollouts) < accuracy).astype(float)
    sort = rng.choice(3, total, p=[0.36, 0.14, 0.5])  # word, digit, other
    start = np.cumsum(length) - length
    wrong = np.zeros(total, bool)
    wrong[(start + rng.integers(4, length))[reward == 0]] = True
    sort[wrong] = 1
    p = np.where(sort == 0, rng.beta(1.2, 2.5, total), rng.beta(12, 0.6, total))
    p[wrong] = rng.beta(1, 12, wrong.sum())
    logp = np.log(p.clip(1e-4, 1 - 1e-6))
    ids = np.where(sort == 1, rng.integers(0, 10, total), rng.integers(10, VOCABULARY, total))
    if kind == "random":
        logp = -np.log(VOCABULARY) + 0.3 * rng.normal(size=total)
        ids = rng.integers(0, VOCABULARY, total)
        reward[:] = 0
    p = np.exp(logp)
    square_sum = p**2 + (1 - p) ** 2 * rng.random(total) ** 2
    distance = np.sqrt((1 - p) ** 2 + square_sum - p**2)
    terse = np.where(sort == 0, 0.5 * rng.normal(size=total) - 0.1, 0.02 * rng.normal(size=total))
    digit = (sort == 1) & ~wrong
    says_right = truth * (0.05 * digit - 0.5 * wrong)
    says_wrong = truth * (-0.12 * digit + 0.4 * wrong)

    names, labels, rows = ["base"], [("base", "base", *["none"] * 4, "user_end")], [logp]

    def add(name, label, shift):
        names.append(name)
        labels.append(label)
        rows.append(logp + shift)

    groups = [("opposed", "verdict", style * terse)]
    groups += [("placebo", f"placebo-{i}", np.zeros(total)) for i in range(families)]
    groups.append(("neutral", "neutral", np.zeros(total)))
    said = {"pos": says_right, "neg": says_wrong, "none": np.zeros(total)}
    for probe, family, common in groups:
        for level in ("none",) if probe == "neutral" else ("pos", "neg"):
            word = 0.03 * rng.normal(size=total) * distance
            # One word is learnt a little better than the other.
            strength = 1 + 0.04 * rng.normal()
            for frame in range(frames):
                noise = 0.02 * rng.normal(size=total) * distance
                told = said[level] if family == "verdict" else 0.0
                label = (probe, family, level, f"f{frame}", "w0", "none", "user_end")
                add(f"{family}.f{frame}.{level}", label, strength * common + told + word + noise)

    if kind == "shuffled":
        reward = rng.permutation(reward)
    values = np.stack(rows).astype(np.float32)
    shape = values.shape
    problem = np.repeat(np.arange(problems), group)[owner]
    return xr.Dataset(
        {
            "logp": (("condition", "token"), values),
            "entropy": (("condition", "token"), np.full(shape, -logp.mean(), np.float32)),
            "p_max": (("condition", "token"), np.full(shape, 0.5, np.float32)),
            "p_square_sum": (
                ("condition", "token"),
                np.broadcast_to(square_sum.astype(np.float32), shape).copy(),
            ),
            "comparable": (("condition", "rollout"), np.ones((len(names), rollouts), bool)),
            "length": (("rollout",), length.astype(np.int32)),
        },
        coords={
            "condition": names,
            **{f: ("condition", [label[i] for label in labels]) for i, f in enumerate(FIELDS)},
            "kind": ("token", np.array(["connective", "computed_digit", "format"])[sort]),
            "problem": ("token", problem),
            "cluster": ("token", problem),
            "rollout": ("token", owner),
            "reward": ("token", reward[owner]),
            "generator": ("token", np.full(total, "policy")),
            "step": ("token", np.zeros(total, np.int32)),
            "is_wrong_token": ("token", wrong & (kind not in ("shuffled", "random"))),
            "token_id": ("token", ids.astype(np.int32)),
        },
        attrs={"scored_by": "made up", "sampled_by": "made up", "off_policy": 0},
    )
