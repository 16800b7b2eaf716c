"""Are verdicts read at all? Verdicts against 19 irrelevant word pairs in the same six sentences.

    python -m studies.placebo_bank bank --traces ../shared/data/processbench_gsm8k.jsonl
    python -m studies.placebo_bank content --traces ../shared/data/processbench_gsm8k.jsonl
    python -m studies.placebo_bank answers --traces ../shared/data/gsm8k_model_solutions.jsonl

`bank` (endpoint E1): the opening steps of 60 ProcessBench traces, whole steps of up to 100 tokens,
under 12 verdict and 228 placebo conditions; some 1.2 million scored tokens. Rewards and labels of
its store are those of the steps kept: right means no wrong step among them.
`content` (E1 again): with one word pair a family, as in `bank`, any word is consistent over
sentences; here the verdict and nine families have two pairs each in three sentences, so that what
is consistent is what the words mean. 30 openings, some .27 million scored tokens. Planned after
`bank` was seen.
`answers` (endpoint E2): all 900 GSM8K questions with four solutions each, verdicts and one
placebo family in one sentence; some 1.5 million scored tokens.

Each takes up to 90 minutes of one core with SmolLM2-135M and goes on where it was stopped;
`answers` takes 150 questions at a time, so that a stop leaves a whole study of fewer. All traces
are off-policy. An earlier study (`first_shifts`) has seen whole ProcessBench traces in three of the
sentences; the sentences of `bank` differ from those of the pilot behind the claims. Tables, figures
and captions lie in OUT/figures; OUT/page.md says the decision in plain words, what would change it,
and how rows of the claims ledger come out.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tokensense as ts
from studies.first_shifts import smollm2
from studies.shift_claims import findings
from studies.shift_diagnosis import decision_lines
from studies.shift_page import page
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        format: of the traces.
        limit: problems to take; None for all.
        opening: most tokens of the steps that are kept of a trace; None for whole traces.
        frames: sentences around each word.
        families: placebo families.
        wordings: word pairs of the verdict and of each family.
        portion: problems that are imported and probed at a time; None for all.
        resamples: of the bootstrap.
        seed: of the choice of traces and of the bootstrap.
    """

    format: str
    limit: int | None
    opening: int | None
    frames: int
    families: int
    wordings: int = 1
    portion: int | None = None
    resamples: int = 10_000
    seed: int = 0


CONFIGS = {
    "bank": Config("processbench", limit=60, opening=100, frames=6, families=19),
    "content": Config("processbench", limit=30, opening=100, frames=3, families=9, wordings=2),
    "answers": Config(
        "gsm8k_solutions", limit=None, opening=None, frames=1, families=1, portion=150
    ),
}
TINY: dict[str, Any] = {"limit": 8, "frames": 2, "families": 3, "resamples": 500}


def openings(
    lines: list[dict[str, Any]], count: Callable[[str], int], config: Config
) -> list[dict[str, Any]]:
    """ProcessBench records cut behind a whole step, one a question, drawn with the seed.

    At least one step is kept. A wrong step behind the cut is none of the record's.
    """
    order = np.random.default_rng(config.seed).permutation(len(lines))
    found: dict[str, dict[str, Any]] = {}
    for line in (lines[i] for i in order):
        kept = [line["steps"][0]]
        for step in line["steps"][1:]:
            if count("\n\n".join([*kept, step])) > (config.opening or sys.maxsize):
                break
            kept.append(step)
        label = line["label"] if line["label"] < len(kept) else -1
        cut = {"steps": kept, "label": label, "final_answer_correct": label == -1}
        found.setdefault(line["problem"], line | cut)
    return list(found.values())[: config.limit]


def traces_for(config: Config, traces: Path, *, policy: Policy, out: Path) -> list[Path]:
    """The files to import one behind the other: the given one, its portions, or one of openings."""
    if config.opening is None and config.portion is None:
        return [traces]
    lines = [json.loads(line) for line in traces.read_text("utf-8").splitlines()]
    if config.opening is not None:
        lines = openings(lines, lambda text: len(policy.encode(text)), config)
        return [_written(lines, out / "openings.jsonl")]
    size, lines = config.portion or len(lines), lines[: config.limit]
    return [
        _written(lines[start : start + size], out / f"questions_{start}.jsonl")
        for start in range(0, len(lines), size)
    ]


def _written(lines: list[dict[str, Any]], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def probed(study: ts.Study, file: Path, config: Config, *, policy: Policy, there: int) -> None:
    """Import a file, unless its problems are there, and probe.

    Args:
        study: its store.
        file: of traces.
        config: what to probe.
        policy: that scores.
        there: problems of the files before.
    """
    held = study.info()["problems"] if study.path.exists() else 0
    if held <= there:
        limit = config.limit if config.opening is None and config.portion is None else None
        study.ingest(file, format=config.format, policy=policy, limit=limit, append=there > 0)
    study.probe(
        policy,
        ("opposed", "placebo"),
        frames=config.frames,
        families=config.families,
        wordings=config.wordings,
    )


def described(study: ts.Study, config: Config, *, name: str, out: Path) -> None:
    """Analyze what is there, print, draw, write the page."""
    found = ts.analyze(study, resamples=config.resamples, seed=config.seed)
    for row in study.table():
        print(*row, sep="  |  ")
    print(*(f"note: {note}" for note in study.notes()), sep="\n")
    study.figures(out / "figures")
    claims = findings(study, found, resamples=config.resamples, seed=config.seed)
    said = {name: (str(found["decision"].attrs["statement"]), "")}
    text = page(decision_lines(name, found), said, claims={name: claims})
    (out / "page.md").write_text(text, "utf-8")


def main(config: Config, *, traces: Path, out: Path, model: str | None = None) -> None:
    """Import, probe, analyze, draw; resumes."""
    policy = ts.load_policy(model or str(smollm2()))
    study = ts.Study(out / "store.zarr")
    for place, file in enumerate(traces_for(config, traces, policy=policy, out=out)):
        probed(study, file, config, policy=policy, there=place * (config.portion or 0))
        described(study, config, name=traces.stem, out=out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=CONFIGS)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--model", help="folder or .gguf; the wheel's SmolLM2 by default")
    parser.add_argument("--out", type=Path, help="runs/placebo_bank_PART by default")
    parser.add_argument("--tiny", action="store_true", help="8 problems, 2 sentences, 3 families")
    given = parser.parse_args()
    chosen = CONFIGS[given.part]
    name = f"placebo_bank_{given.part}" + "_tiny" * given.tiny
    try:
        main(
            replace(chosen, **TINY) if given.tiny else chosen,
            traces=given.traces,
            model=given.model,
            out=given.out or Path("runs") / name,
        )
    except TokensenseError as error:
        sys.exit(f"placebo_bank: {error}")
