"""Slow plain versions of the statistics: loops over tokens or pairs; nothing from tokensense."""

import math

import numpy as np
from scipy import stats


def pair_statistics(positive, negative, surprisal, distance, rollout, floor=None):
    """All descriptions of one pair, tokens pooled, straight from their definitions."""
    n = len(positive)
    affected = {"any": [], "floor": [], "fixed": []}
    for t in range(n):
        size = max(abs(positive[t]), abs(negative[t]))
        if size > 0:
            affected["any"].append(t)
        if floor is not None and size > floor[t]:
            affected["floor"].append(t)
        if size > 0.05:
            affected["fixed"].append(t)

    def share(which, test):
        chosen = affected[which]
        hits = sum(test(positive[t], negative[t]) for t in chosen)
        return hits / len(chosen) if chosen else math.nan

    def same(a, b):
        return (a > 0 and b > 0) or (a < 0 and b < 0)

    def opposite(a, b):
        return (a > 0 > b) or (a < 0 < b)

    m = [(a + b) / 2 for a, b in zip(positive, negative, strict=True)]
    d = [(a - b) / 2 for a, b in zip(positive, negative, strict=True)]
    squares = {"m": 0.0, "d": 0.0}
    for r in sorted(set(rollout)):
        own = [t for t in range(n) if rollout[t] == r]
        for key, values in (("m", m), ("d", d)):
            mean = sum(values[t] for t in own) / len(own)
            squares[key] += sum((values[t] - mean) ** 2 for t in own)
    clipped = [np.clip(z, *np.quantile(z, (0.01, 0.99))) for z in (positive, negative)]
    pearson = stats.pearsonr(*clipped).statistic
    size = [max(abs(a), abs(b)) for a, b in zip(positive, negative, strict=True)]
    mean_size = [(abs(a) + abs(b)) / 2 for a, b in zip(positive, negative, strict=True)]
    standard = [z / q for z, q in zip(mean_size, distance, strict=True) if q >= 0.001]
    return {
        "same_direction": share("any", same),
        "same_direction_above_floor": share("floor", same),
        "same_direction_above_0.05": share("fixed", same),
        "same_direction_if_gaussian": 0.5 + math.asin(pearson) / math.pi,
        "reversal": share("any", opposite),
        "reversal_above_floor": share("floor", opposite),
        "reversal_above_0.05": share("fixed", opposite),
        "affected_above_floor": math.nan if floor is None else len(affected["floor"]) / n,
        "affected_above_0.05": len(affected["fixed"]) / n,
        "correlation": pearson,
        "rank_correlation": stats.spearmanr(positive, negative).statistic,
        "contrast_variance_share": squares["d"] / (squares["d"] + squares["m"]),
        "mean_shift": sum(m) / n,
        "mean_contrast": sum(d) / n,
        "mean_absolute_shift": sum(mean_size) / n,
        "mean_absolute_common": sum(map(abs, m)) / n,
        "mean_absolute_contrast": sum(map(abs, d)) / n,
        "mean_sensitivity": sum(size) / n,
        "mean_standardized_shift": sum(standard) / len(standard),
        "sensitivity_to_surprisal": stats.spearmanr(size, surprisal).statistic,
    }


def bootstrap_draws(items, cluster, statistic, *, clusters, resamples, seed):
    """One-stage cluster bootstrap: copy the items of every drawn problem, compute anew."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        drawn = rng.integers(0, clusters, size=clusters)
        found.append(statistic(np.concatenate([items[cluster == c] for c in drawn])))
    return np.array(found)


def within_problem_auroc(score, reward, problem, generator):
    """(balanced, plain) AUROC, contest by contest."""
    contests = []
    for p in sorted(set(problem)):
        right = [i for i in range(len(score)) if problem[i] == p and reward[i] == 1]
        wrong = [i for i in range(len(score)) if problem[i] == p and reward[i] == 0]
        for i in right:
            for j in wrong:
                won = 1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0
                contests.append((generator[i], generator[j], won, 1 / (len(right) * len(wrong))))
    if not contests:
        return math.nan, math.nan
    plain = sum(won * w for *_, won, w in contests) / sum(w for *_, w in contests)
    above = below = 0.0
    names = sorted(set(generator))
    for a in names:
        for b in names:
            if a > b:
                continue
            forth = [(won, w) for g, h, won, w in contests if (g, h) == (a, b)]
            back = [(won, w) for g, h, won, w in contests if (g, h) == (b, a)]
            if not forth or not back:
                continue
            n, m = sum(w for _, w in forth), sum(w for _, w in back)
            middle = (sum(x * w for x, w in forth) / n + sum(x * w for x, w in back) / m) / 2
            weight = n if a == b else 4 * n * m / (n + m)
            above, below = above + weight * middle, below + weight
    return (above / below if below else math.nan), plain


def wording_floor(contrasts, distance):
    """q95 of |contrast| within deciles of distance; (borders, floors) over all pairs and tokens."""
    used = [not all(math.isnan(c) for c in contrasts[:, t]) for t in range(contrasts.shape[1])]
    known = sorted(q for q, u in zip(distance, used, strict=True) if u)
    borders = []
    for decile in range(1, 10):
        # The smallest value with at least this share of the values at or below it.
        border = known[math.ceil(round(decile * len(known) / 10, 9)) - 1]
        if border > known[0] and border not in borders:
            borders.append(border)
    bins = [[] for _ in range(len(borders) + 1)]
    for row in contrasts:
        for value, q in zip(row, distance, strict=True):
            if not math.isnan(value):
                bins[sum(q >= border for border in borders)].append(abs(value))
    return borders, [float(np.quantile(values, 0.95)) for values in bins]


def match(position, inside, rollout, caliper):
    """(matched, partner weight) by looking at every pair of tokens of a trace."""
    n = len(position)
    matched, weight = [False] * n, [0.0] * n
    for i in range(n):
        if not inside[i]:
            continue
        partners = [
            j
            for j in range(n)
            if rollout[j] == rollout[i]
            and not inside[j]
            and abs(position[j] - position[i]) <= caliper
        ]
        for j in partners:
            weight[j] += 1 / len(partners)
        matched[i] = bool(partners)
    return matched, weight
