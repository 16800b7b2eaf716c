"""Sampler speed: our own loop against transformers' `generate`, on one policy in one run.

Both draw the same number of responses to the same problems from the whole distribution, in turns,
so that a busy machine slows both. Tokens are those of the responses, end token included. Processor
time is printed beside wall-clock time: on a shared machine it is the steadier of the two.

    python -m studies.sampler_speed                    # tiny:mixed, arithmetic: about a minute
    python -m studies.sampler_speed --tiny             # seconds: does it run?

`transformers 16` is `generate` with the batch that it has by default, `transformers 256` with as
many rows as our sampler takes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tokensense as ts
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy
from tokensense.models.sampler import MOST_ROWS
from tokensense.rollouts.generate import generate, responses
from tokensense.rollouts.trajectory import Trace
from tokensense.tasks.planted import PLANTED

OWN = "tokensense"


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        model: as `load_policy` takes it.
        task: planted task of the problems.
        problems: distinct ones.
        group: responses a problem.
        max_new_tokens: longest response.
        repeats: rounds; each method goes once a round, with another seed each round.
    """

    model: str = "tiny:mixed"
    task: str = "arithmetic"
    problems: int = 64
    group: int = 8
    max_new_tokens: int = 128
    repeats: int = 5


TINY = Config(problems=4, group=2, repeats=1)


def methods(policy: Policy, config: Config) -> dict[str, Callable[[int], Sequence[Trace]]]:
    """Each way to sample all responses with a seed."""
    problems = PLANTED[config.task].problems(config.problems, 0)
    sizes = {"group": config.group, "max_new_tokens": config.max_new_tokens}
    found = {OWN: lambda seed: responses(policy, problems, seed=seed, **sizes)}
    for batch in (16, MOST_ROWS):
        found[f"transformers {batch}"] = lambda seed, batch=batch: list(
            generate(policy, problems, seed=seed, batch=batch, **sizes)
        )
    return found


def main(config: Config) -> None:
    """Measure and print."""
    policy = ts.load_policy(config.model)
    ways = methods(policy, config)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for way in ways.values():
        way(0)  # the first call of each pays for what later ones find warm
    for seed in range(1, config.repeats + 1):
        for name, way in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            traces = way(seed)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            tokens = sum(len(trace.ids or ()) for trace in traces)
            rates[name].append((tokens / wall, tokens / processor))
    print(f"{policy!r}; {config.problems} x {config.group} responses, median of {config.repeats}")
    print(f"{'':<18}{'tokens/s':>10}{'per processor s':>18}")
    for name, found in rates.items():
        wall, processor = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:<18}{wall:>10.0f}{processor:>18.0f}")
    for other in list(ways)[1:]:
        for unit, column in (("wall clock", 0), ("processor time", 1)):
            ratios = [a[column] / b[column] for a, b in zip(rates[OWN], rates[other], strict=True)]
            print(
                f"{OWN} / {other}, {unit}: {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=Config.model, help="as load_policy takes it")
    parser.add_argument("--task", default=Config.task, choices=sorted(PLANTED))
    parser.add_argument("--tiny", action="store_true", help="eight responses, one round")
    given = parser.parse_args()
    sizes = TINY if given.tiny else Config()
    try:
        main(Config(given.model, given.task, sizes.problems, sizes.group, repeats=sizes.repeats))
    except TokensenseError as error:
        sys.exit(f"sampler_speed: {error}")
