"""Blind naming: is what was planted in a policy told from the arrays of a store alone?

    OMP_NUM_THREADS=1 python -m studies.blind_naming --policies data/tiny --out runs/blind_naming

Six kinds, each in seeded studies of 60 problems x 8 rollouts: policies whose tags are `truthful`,
`style`, `mixed` or `placebo`; `shuffled`, stores of truthful and mixed policies whose labels
were permuted; `random`, untrained weights. A store is copied without names, digests, texts, cards
and provenance under a number that says nothing, then `analyze` names it.

Labels are permuted among the rollouts of each problem in one half of the shuffled stores, among all
rollouts of the store in the other half; what else tells of errors (steps, first wrong tokens) is
wiped there. A shuffled store is made of the rollouts of a truthful or mixed study, labels apart.

Each study is a line of `studies.csv`; a run that is stopped goes on, and more studies or other
policies are more lines. `confusion.csv` and `confusion.json` add all lines up. A line holds the
digest of the thresholds and the commit: lines of other thresholds are not added.

Give policies that no threshold has seen: `studies.build_tiny_policy --seed`, one folder a variant.
"""

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

import tokensense as ts
from tokensense.errors import TokensenseError
from tokensense.models import tiny
from tokensense.models.policy import Policy, load_policy
from tokensense.probes.node import COORDINATES
from tokensense.rollouts.table import NO_TEXT
from tokensense.schema import NO_STEP, NO_TOKEN, PROBE, Label
from tokensense.stats.naming import NOT_ESTIMABLE, THRESHOLDS, WORDS
from tokensense.store.archive import Archive
from tokensense.store.provenance import git_state
from tokensense.tasks import arithmetic

PLANTED = ("truthful", "style", "mixed", "placebo")
SHUFFLED_FROM = ("truthful", "mixed")
SHUFFLED, RANDOM = "shuffled", "random"
KINDS = (*PLANTED, SHUFFLED, RANDOM)
STUDIES = "studies.csv"
BLIND = "0" * 64


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        studies: of each kind.
        problems: of each study.
        group: rollouts a problem.
        max_new_tokens: longest rollout.
        frames: first words of the tags.
        families: placebo pairs.
        resamples: of the cluster bootstrap; words need no more than rough intervals.
        seed: of the first study; each has its own problems and samples.
    """

    studies: int = 20
    problems: int = 60
    group: int = 8
    max_new_tokens: int = 96
    frames: int = 3
    families: int = 3
    resamples: int = 1000
    seed: int = 50_000


TINY = Config(studies=1, problems=8, group=2, max_new_tokens=24, resamples=100)


class Job(NamedTuple):
    """One study to sample: kind of policy, number, seed."""

    kind: str
    number: int
    seed: int

    def labels(self) -> list[str]:
        """Kinds of the stores made of it, itself first."""
        shuffles = self.kind in SHUFFLED_FROM and self.number % 2 == SHUFFLED_FROM.index(self.kind)
        return [self.kind, *([SHUFFLED] if shuffles else [])]


def jobs(config: Config) -> list[Job]:
    """All studies in an order that says nothing."""
    every = [
        Job(kind, number, config.seed + 1000 * place + number)
        for place, kind in enumerate((*PLANTED, RANDOM))
        for number in range(config.studies)
    ]
    order = np.random.default_rng(config.seed).permutation(len(every))
    return [every[place] for place in order]


def policy_folders(roots: Sequence[Path]) -> dict[str, list[Path]]:
    """Folders of policies by the variant in their cards."""
    found: dict[str, list[Path]] = {kind: [] for kind in PLANTED}
    for card in sorted(card for root in roots for card in root.glob(f"**/{tiny.CARD}")):
        variant = json.loads(card.read_text("utf-8"))["variant"]
        if variant in found:
            found[variant].append(card.parent)
    missing = [kind for kind, folders in found.items() if not folders]
    if missing:
        sys.exit(
            f"blind_naming needs policies of the variants {', '.join(PLANTED)}; below "
            f"{', '.join(map(str, roots))} there is none of {', '.join(missing)}. Make them with "
            "python -m studies.build_tiny_policy VARIANT --seed SEED --out FOLDER."
        )
    return found


def policy_of(job: Job, folders: dict[str, list[Path]]) -> Policy:
    """The policy of a study; several of a variant take turns, random weights are new each time."""
    if job.kind == RANDOM:
        size = tiny.SIZES["arithmetic"]
        model, tokenizer = tiny.new_model(arithmetic.VOCABULARY, size, seed=job.seed)
        return Policy(model, tokenizer, name=RANDOM, wordings="arithmetic")
    return load_policy(folders[job.kind][job.number % len(folders[job.kind])])


def sampled(job: Job, policy: Policy, config: Config, *, path: Path) -> ts.Study:
    """A study of the policy, sampled and probed."""
    study = ts.Study(path)
    study.generate(
        policy,
        config.problems,
        task="arithmetic",
        group=config.group,
        max_new_tokens=config.max_new_tokens,
        seed=job.seed,
        progress=False,
    )
    sizes = {"frames": config.frames, "families": config.families}
    study.probe(policy, ("opposed", "placebo", "neutral"), **sizes, progress=False)
    return study


# Blinding


def blinded(study: ts.Study, *, path: Path, shuffle: str, seed: int) -> ts.Study:
    """A copy of a store that holds its arrays and the roles of its conditions, and nothing else.

    Args:
        study: finished.
        path: of the copy.
        shuffle: `no`, or the labels are permuted `within` problems or `across` the store.
        seed: of the permutation.
    """
    source = study.archive()
    rollouts = _anonymous(source.rollouts().load())
    if shuffle != "no":
        rollouts = _shuffled(rollouts, within=shuffle == "within", seed=seed)
    size = rollouts.sizes["rollout"]
    with Archive(path) as target:
        target.write_rollouts(rollouts)
        for name in (node.split("/")[2] for node in source.nodes() if node.startswith("/probes/")):
            probe = source.read(f"/probes/{name}").load()
            target.start_probe(name, _header(probe), [(0, size)])
            target.write_block(name, 0, {variable: probe[variable].values for variable in PROBE})
            roles = {key: probe[key].variable for key in ("condition", *COORDINATES)}
            target.assemble_probe(name, coords=roles, attrs={"scored_by": BLIND})
    return ts.Study(path)


def _anonymous(rollouts: xr.Dataset) -> xr.Dataset:
    """Without names, texts and digests."""
    gone = {"generator": NO_TEXT, "rollout_name": NO_TEXT, "text_byte": ord("x")}
    blank = rollouts.assign(
        {
            name: (rollouts[name].dims, np.full_like(rollouts[name].values, value))
            for name, value in gone.items()
        }
    )
    digests = {"sampled_by_digest": BLIND, "tokenizer": BLIND, "tokenizer_digest": BLIND}
    blank.attrs = {"sampled_by": [BLIND], **digests, "set_aside": "{}", "refused": 0}
    return blank


def _header(probe: xr.Dataset) -> dict[str, object]:
    digests = dict.fromkeys(("policy_digest", "tokenizer_digest", "template_digest"), BLIND)
    dtype = json.loads(probe.attrs["header"])["dtype"]
    return {"conditions": [{}] * probe.sizes["condition"], "dtype": dtype, **digests}


def _shuffled(rollouts: xr.Dataset, *, within: bool, seed: int) -> xr.Dataset:
    """Rewards permuted; what else tells of errors wiped."""
    rng = np.random.default_rng([seed, 1])
    owner, reward = rollouts["problem_of"].values, rollouts["reward"].values
    groups = owner if within else np.zeros_like(owner)
    moved = reward.copy()
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        moved[own] = reward[rng.permutation(own)]
    return rollouts.assign(
        reward=("rollout", moved),
        label=("rollout", np.full_like(rollouts["label"].values, Label.UNLABELED)),
        wrong_step=("rollout", np.full_like(rollouts["wrong_step"].values, NO_STEP)),
        wrong_token=("rollout", np.full_like(rollouts["wrong_token"].values, NO_TOKEN)),
    )


# Naming


def lines(job: Job, folders: dict[str, list[Path]], config: Config) -> Iterator[dict[str, object]]:
    """Sample one study and name the stores made of it, in a folder that goes with the call."""
    policy = policy_of(job, folders)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        study = sampled(job, policy, config, path=Path(folder) / "sampled.zarr")
        sampling = time.monotonic() - started
        for place, kind in enumerate(job.labels()):
            shuffle = "no" if kind != SHUFFLED else "within" if job.number % 4 < 2 else "across"
            path = Path(folder) / f"{place}.zarr"
            copy = blinded(study, path=path, shuffle=shuffle, seed=job.seed)
            about = {"kind": kind, "sampled_as": job.kind, "number": job.number, "seed": job.seed}
            about |= {"shuffle": shuffle, "policy": policy.digest[:16]}
            named = naming(copy, resamples=config.resamples)
            yield {**about, **named, "sampling_seconds": round(sampling, 1)}
            sampling = 0.0


def naming(study: ts.Study, *, resamples: int) -> dict[str, object]:
    """What `analyze` says of a store; it sees the store and nothing else."""
    started = time.monotonic()
    found = ts.analyze(study, resamples=resamples)["character"]
    estimates = zip(found["quantity"].values, found["estimate"].values, strict=True)
    return {
        "word": found.attrs["word"],
        **{str(name): round(float(value), 4) for name, value in estimates},
        "thresholds": found.attrs["thresholds_digest"],
        "commit": (git_state(Path(__file__).parent) or {}).get("commit", "none"),
        "analyze_seconds": round(time.monotonic() - started, 1),
    }


# What came of it


def confusion(rows: Sequence[dict[str, str]]) -> list[dict[str, object]]:
    """Kinds against words, and how many were named right."""
    counts: list[dict[str, object]] = []
    for kind in KINDS:
        own = [row["word"] for row in rows if row["kind"] == kind]
        words = {word: own.count(word) for word in (*WORDS, NOT_ESTIMABLE)}
        counts.append({"kind": kind, "studies": len(own), "right": own.count(kind), **words})
    return counts


def written(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """A table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def summary(out: Path, config: Config) -> None:
    """Add up all lines of these thresholds, print and write them."""
    with (out / STUDIES).open(newline="", encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    rows = [row for row in every if row["thresholds"] == THRESHOLDS.digest]
    table = confusion(rows)
    written(out / "confusion.csv", table)
    about = {
        "table": table,
        "thresholds": asdict(THRESHOLDS),
        "thresholds_digest": THRESHOLDS.digest,
        "commits": sorted({row["commit"] for row in rows}),
        "policies": sorted({row["policy"] for row in rows if row["kind"] != RANDOM}),
        "lines_of_other_thresholds": len(every) - len(rows),
        "config": asdict(config),
    }
    (out / "confusion.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    widths = [max(len(str(row[name])) for row in table) for name in table[0]]
    widths = [max(width, len(name)) for width, name in zip(widths, table[0], strict=True)]
    for row in ({name: name for name in table[0]}, *table):
        cells = zip(row.values(), widths, strict=True)
        print("  ".join(f"{value!s:>{width}}" for value, width in cells))
    print(f"{len(rows)} lines; {out / 'confusion.csv'}, {out / 'confusion.json'}")


def main(config: Config, *, roots: Sequence[Path] = (tiny.root(),), out: Path) -> None:
    """Name all stores that are not named yet; resumes."""
    folders = policy_folders(roots)
    out.mkdir(parents=True, exist_ok=True)
    path = out / STUDIES
    done: set[tuple[str, str]] = set()
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            done = {(row["sampled_as"], row["seed"]) for row in csv.DictReader(file)}
    todo = [job for job in jobs(config) if (job.kind, str(job.seed)) not in done]
    for place, job in enumerate(todo):
        found = list(lines(job, folders, config))
        fresh = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(found[0]))
            if fresh:
                writer.writeheader()
            writer.writerows(found)
        said = "; ".join(f"{row['kind']} named {row['word']}" for row in found)
        print(f"{place + 1}/{len(todo)}  {found[0]['sampling_seconds']} s  {said}", flush=True)
    summary(out, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--policies", type=Path, nargs="+", default=[tiny.root()], help="folders of policies"
    )
    parser.add_argument("--studies", type=int, default=Config.studies, help="of each kind")
    parser.add_argument("--seed", type=int, default=Config.seed, help="of the first study")
    parser.add_argument("--out", type=Path, default=Path("runs/blind_naming"))
    parser.add_argument("--tiny", action="store_true", help="one small study of each kind")
    given = parser.parse_args()
    chosen = TINY if given.tiny else replace(Config(), studies=given.studies, seed=given.seed)
    try:
        main(chosen, roots=given.policies, out=given.out)
    except TokensenseError as error:
        sys.exit(f"blind_naming: {error}")
