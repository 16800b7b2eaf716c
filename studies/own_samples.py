"""Own samples: the same descriptions where the policy that is scored wrote the tokens itself.

The first study scores traces of other models. Here the policy samples its own responses (T = 1,
whole distribution) to questions of GSM8K, so that what is said of its shifts is on-policy.

    python -m studies.own_samples --problems ../shared/data/gsm8k_model_solutions.jsonl

A run that is stopped while it scores goes on; sampling itself starts again.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tokensense as ts
from studies.first_shifts import Config as Scoring
from studies.first_shifts import describe, smollm2
from tokensense import importing
from tokensense.errors import TokensenseError


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        problems: questions to sample a response for.
        max_new_tokens: longest response.
        seed: of sampling.
        scoring: conditions and resamples, as in the first study.
    """

    problems: int = 64
    max_new_tokens: int = 384
    seed: int = 0
    scoring: Scoring = field(default_factory=Scoring)


TINY = Config(problems=8, max_new_tokens=32, scoring=Scoring(frames=1, resamples=1_000))


def main(config: Config, *, questions: Path, out: Path, model: str | None = None) -> None:
    """Sample, probe, analyze, draw."""
    policy = ts.load_policy(model or str(smollm2()))
    study = ts.Study(out / "store.zarr")
    found = importing.read(questions, format="gsm8k_solutions", limit=config.problems).problems
    study.generate(policy, found, max_new_tokens=config.max_new_tokens, seed=config.seed)
    describe(study, policy, config.scoring, out=out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    shared = Path("../shared/data/gsm8k_model_solutions.jsonl")
    parser.add_argument("--problems", type=Path, default=shared)
    parser.add_argument("--model", default=None, help="the wheel's SmolLM2 by default")
    parser.add_argument(
        "--out", type=Path, help="runs/own_samples, or runs/own_samples_tiny with --tiny"
    )
    parser.add_argument("--tiny", action="store_true", help="8 short responses, one frame")
    given = parser.parse_args()
    # A store holds one set of rollouts: the tiny run and the whole one need a store each.
    out = given.out or Path("runs/own_samples_tiny" if given.tiny else "runs/own_samples")
    try:
        main(
            TINY if given.tiny else Config(),
            questions=given.problems,
            model=given.model,
            out=out,
        )
    except TokensenseError as error:
        sys.exit(f"own_samples: {error}")
