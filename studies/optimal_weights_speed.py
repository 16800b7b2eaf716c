"""How long OPTW takes to solve, by length; against quadprog where it is installed.

    python -m studies.optimal_weights_speed [--repeats 7]

Prints one JSON object: lengths, milliseconds (median and least of the repeats), iterations, the
largest violation of the optimality conditions, the exponent of time in length, and quadprog's time
on the dense problem at --dense tokens (4,096 takes two minutes and 400 MB), how far its weights are
from ours, and its objective above ours as a share. Both are exact to 1e-14 at 256 tokens; at 1,024
quadprog stops short, at an objective above ours (ours meets the optimality conditions there).

The problem is OPTW's by its defaults (lambda 1, phi 1, gamma .3, bounds .5 and 2) with noise and
evidence drawn from Exp(1). One process, one thread: set OMP_NUM_THREADS=1.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from tokensense.credit.optimal import parts_of, programme_of
from tokensense.credit.programme import Programme, kkt_residual, solve

LENGTHS = (64, 512, 4_096, 32_768, 262_144)


def drawn(count: int, *, seed: int = 0) -> Programme:
    """OPTW's problem of one response."""
    rng = np.random.default_rng(seed)
    noise, evidence = rng.exponential(size=(2, count))
    return programme_of(parts_of(noise, evidence / evidence.mean(), np.array([count])))


def timed(task: Callable[[], object], repeats: int) -> dict[str, float]:
    """Milliseconds, after one run that does not count."""
    task()
    spans = []
    for _ in range(repeats):
        start = time.perf_counter()
        task()
        spans.append(1e3 * (time.perf_counter() - start))
    return {"median_ms": statistics.median(spans), "least_ms": min(spans)}


def measured(count: int, repeats: int) -> dict[str, float]:
    """Time and exactness at one length."""
    problem = drawn(count)
    found = solve(problem)
    return {
        "tokens": count,
        **timed(lambda: solve(problem), repeats),
        "iterations": found.iterations,
        "kkt_residual": kkt_residual(problem, found),
    }


def dense_rival(count: int) -> dict[str, object]:
    """Quadprog on the same problem, its matrices made beforehand."""
    try:
        import quadprog
    except ImportError:
        return {"tokens": count, "quadprog": "not installed: the extra `dev`"}
    problem = drawn(count)
    eye = np.eye(count)
    h = np.stack([problem.times(row) for row in eye])
    left = np.concatenate([np.ones((count, 1)), eye, -eye], axis=1)
    right = np.concatenate([problem.total, problem.low, -problem.high])
    start = time.perf_counter()
    came = quadprog.solve_qp(h, problem.linear, left, right, 1)[0]
    seconds = time.perf_counter() - start
    ours = timed(lambda: solve(problem), 5)["median_ms"]
    found = solve(problem).weights
    # Both meet the constraints, so that the smaller objective is nearer to the minimum.
    mine, other = (0.5 * w @ problem.times(w) - problem.linear @ w for w in (found, came))
    return {
        "tokens": count,
        "quadprog_ms": 1e3 * seconds,
        "times_ours": 1e3 * seconds / ours,
        "largest_difference": float(np.abs(found - came).max()),
        "objective_above_ours": float((other - mine) / abs(mine)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dense", type=int, nargs="+", default=[256, 1_024])
    asked = parser.parse_args()
    rows = [measured(count, asked.repeats) for count in LENGTHS]
    ends = rows[2], rows[-1]
    exponent = np.log(ends[1]["least_ms"] / ends[0]["least_ms"]) / np.log(
        ends[1]["tokens"] / ends[0]["tokens"]
    )
    result = {
        "rows": rows,
        "exponent_from_4096": float(exponent),
        "rival": [dense_rival(count) for count in asked.dense],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
