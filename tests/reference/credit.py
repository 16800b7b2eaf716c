"""Plain Python loops for what `tokensense.credit` does at once: slow, and right by reading."""

import math


def cscr(
    score: list[float], length: list[int], *, gamma: float, threshold: float, tau: float
) -> list[float]:
    """a = 1 - gamma (1 - exp(-(s - lambda)+ / tau)), scaled to mean 1 in each rollout."""
    weights, start = [], 0
    for count in length:
        kept = []
        for s in score[start : start + count]:
            beyond = max(s - threshold, 0.0)
            kept.append(1 - gamma * (1 - math.exp(-beyond / tau)))
        weights += [count * a / math.fsum(kept) for a in kept]
        start += count
    return weights


def dealt(
    weights: list[float], own: list[float], other: list[float], length: list[int]
) -> list[float]:
    """The token that ranks k-th by `other` gets the weight of the token that ranks k-th by `own`.

    Python's sort is stable: equal scores keep their positions.
    """
    result, start = [0.0] * len(weights), 0
    for count in length:
        places = range(start, start + count)
        by_own = sorted(places, key=lambda t: own[t])
        by_other = sorted(places, key=lambda t: other[t])
        for giver, taker in zip(by_own, by_other, strict=True):
            result[taker] = weights[giver]
        start += count
    return result


def advantage(reward: list[float], group: list[int], kind: str, **numbers: float) -> list[float]:
    """Group std, group mean or leave-one-out; 0 where a group does not vary."""
    found = []
    for own, label in zip(reward, group, strict=True):
        members = [r for r, g in zip(reward, group, strict=True) if g == label]
        if min(members) == max(members):
            found.append(0.0)
            continue
        n = len(members)
        mean = math.fsum(members) / n
        if kind == "group_mean":
            found.append(own - mean)
        elif kind == "leave_one_out":
            found.append(own - (math.fsum(members) - own) / (n - 1))
        else:
            squares = math.fsum((r - mean) ** 2 for r in members)
            std = math.sqrt(squares / max(n - numbers["ddof"], 1))
            found.append((own - mean) / (std + numbers["eps"]))
    return found


def otb(told: dict[str, list]) -> list[float]:
    """R - B_t, B_t the mean reward at position t weighted by the energy spent so far."""
    spent, start = [], 0
    for count in told["length"]:
        energies = [d * d for d in told["distance"][start : start + count]]
        spent.append([math.fsum(energies[: t + 1]) for t in range(count)])
        start += count
    credit = []
    for own, count in enumerate(told["length"]):
        for t in range(count):
            there = [
                r for r, n in enumerate(told["length"])
                if told["group"][r] == told["group"][own] and t < n
            ]  # fmt: skip
            total = math.fsum(spent[r][t] for r in there)
            weighted = math.fsum(spent[r][t] * told["reward"][r] for r in there)
            baseline = weighted / total if len(there) > 1 and total > 0 else 0.0
            credit.append(told["reward"][own] - baseline)
    return credit


def lampo(told: dict[str, list]) -> list[float]:
    """Mean over the others of the group of (R - R') sigmoid(-sign(R - R')(s - s'))."""
    means, start = [], 0
    for count in told["length"]:
        means.append(math.fsum(told["logp"][start : start + count]) / max(count, 1))
        start += count
    credit = []
    for own, count in enumerate(told["length"]):
        others = [
            r for r in range(len(means)) if told["group"][r] == told["group"][own] and r != own
        ]
        total = 0.0
        for other in others:
            gap = told["reward"][own] - told["reward"][other]
            sign = (gap > 0) - (gap < 0)
            total += gap / (1 + math.exp(sign * (means[own] - means[other])))
        credit += [total / len(others) if others else 0.0] * count
    return credit


def delta(vectors, advantage, *, refinements=1, low=0.8, high=1.2, refreshed=False):
    """DelTA by distances, one token after the other."""
    sides = {s: [t for t, a in enumerate(advantage) if a * s > 0] for s in (1, -1)}
    dims = range(len(vectors[0]))

    def means(alpha):
        found = {}
        for s, own in sides.items():
            total = sum(abs(advantage[t]) * alpha[t] for t in own)
            found[s] = [
                sum(abs(advantage[t]) * alpha[t] * vectors[t][d] for t in own) / total for d in dims
            ]
        return found

    def margins(mu):
        found = {}
        for s, own in sides.items():
            for t in own:
                far, near = (
                    sum((vectors[t][d] - mu[side][d]) ** 2 for d in dims) for side in (-s, s)
                )
                found[t] = far - near
        return found

    def spreads(margin):
        found = {}
        for s, own in sides.items():
            mean = sum(margin[t] for t in own) / len(own)
            found[s] = max(sum((margin[t] - mean) ** 2 for t in own) / len(own), 1e-8) ** 0.5
        return found

    def alphas(margin, gamma):
        return {
            t: 1 / (1 + math.exp(-margin[t] / gamma[s])) for s, own in sides.items() for t in own
        }

    margin = margins(means(dict.fromkeys(range(len(vectors)), 1.0)))
    gamma = spreads(margin)
    for _ in range(refinements):
        alpha = alphas(margin, spreads(margin) if refreshed else gamma)
        gamma = spreads(margin)
        margin = margins(means(alpha))
    alpha = alphas(margin, spreads(margin) if refreshed else gamma)
    lam = [low + (high - low) * alpha[t] if t in alpha else low for t in range(len(vectors))]
    return [x * len(lam) / sum(lam) for x in lam]
