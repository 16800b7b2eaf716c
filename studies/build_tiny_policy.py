"""Train the bundled tiny policies from scratch: what each tag tells is planted, hence known.

    OMP_NUM_THREADS=1 python -m studies.build_tiny_policy mixed
    python -m studies.build_tiny_policy --truth 0.6 --style 0.8 --seed 7 --out runs/ladder

`truthful`: tags tell the outcome. `style`: tags change the wording only. `mixed`: both, the outcome
weakly. `placebo`: tags are there and change nothing. `tables`: the base policy of the table chains.
With --truth or --style: one rung of the ladder between them, named after the two.

Fresh examples each step, loss on the solution only, batches of like length; AdamW, warm-up, then a
cosine down to a twentieth. The schedule counts steps, one thread computes, all random numbers come
from the seed: the same seed, versions and kind of processor give the same bytes. About 5 minutes on
one free core, most of it training.

Source: shared/notes/tinymodel.md sections 0, 1; assay.md section 1. Departures: the schedule counts
steps, not seconds; batches of 32 rather than 64, with which arithmetic is learned from a third
fewer examples, and more steps, since tags of many wordings are learned later than one; the tables
policy is taught in one go.
"""

import argparse
import json
import math
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn import functional

from tokensense.errors import TokensenseError
from tokensense.models import tiny
from tokensense.models.policy import Policy
from tokensense.rollouts.generate import generate
from tokensense.tasks import arithmetic, arithmetic_labels, tables, tables_labels
from tokensense.tasks.arithmetic_traces import TAGGINGS, Tags, examples
from tokensense.tasks.problem import Problem
from tokensense.tasks.tables_examples import draw_examples

Pair = tuple[list[int], list[int]]  # ids of a prompt, ids of the solution
Verifier = Callable[[tuple[int, ...], str], bool]
EVALUATION = 2027  # seed of the problems that every policy is measured on


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        name: of the folder.
        task: arithmetic or tables.
        tags: what tags tell; arithmetic only, the tables have theirs in `tables.Regime`.
        seed: of weights and data.
        steps: updates.
        batch: examples an update.
        pool: batches that are drawn at once and sorted by length.
        rate: highest learning rate.
        warm_up: steps up to it.
        floor: last learning rate, as a share of the highest.
        problems: on which each accuracy is measured.
    """

    name: str
    task: str = "arithmetic"
    tags: Tags = field(default_factory=Tags)
    seed: int = 0
    steps: int = 2400
    batch: int = 32
    pool: int = 32
    rate: float = 2e-3
    warm_up: int = 100
    floor: float = 0.05
    problems: int = 1024


CONFIGS = {
    **{name: Config(name, tags=tags) for name, tags in TAGGINGS.items()},
    "tables": Config("tables", task="tables", steps=3000),
}


# What is taught


def taught(config: Config, rng: np.random.Generator, count: int) -> list[Pair]:
    """Fresh examples."""
    if config.task == "tables":
        facts = world()
        found = []
        for regime in tables.MIXTURE:
            chains = tables.draw_chains(regime, count=count // len(tables.MIXTURE), generator=rng)
            found += draw_examples(facts, regime, chains=chains, generator=rng)
        return [(list(tables.prompt(e.chain, e.tag)), list(e.response)) for e in found]
    return [(ids(e.prompt), ids(e.words)) for e in examples(rng, count=count, tags=config.tags)]


def world() -> tables.Facts:
    """The facts that the tables policy is taught."""
    return tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))


def ids(words: Sequence[str]) -> list[int]:
    """Ids of words of the arithmetic."""
    return [PLACE[word] for word in words]


PLACE = {word: place for place, word in enumerate(arithmetic.VOCABULARY)}


def batches(config: Config, rng: np.random.Generator) -> Iterator[list[Pair]]:
    """Batches of examples of like length, in random order, without end."""
    while True:
        pool = taught(config, rng, config.batch * config.pool)
        pool.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        for place in rng.permutation(config.pool):
            yield pool[place * config.batch : (place + 1) * config.batch]


# Training


def blank(config: Config) -> Policy:
    """The policy before its first step."""
    words = tables.VOCABULARY if config.task == "tables" else arithmetic.VOCABULARY
    model, tokenizer = tiny.new_model(words, tiny.SIZES[config.task], seed=config.seed)
    return Policy(model, tokenizer, name=tiny.SCHEME + config.name, wordings=config.task)


def loss_of(policy: Policy, batch: Sequence[Pair]) -> torch.Tensor:
    """Mean negative log-probability of the solutions' tokens, nats.

    Padding stands on the right, where causal attention never looks.
    """
    width = max(len(prompt) + len(solution) for prompt, solution in batch)
    tokens = np.zeros((len(batch), width), np.int64)
    counts = np.zeros((len(batch), width - 1), bool)  # does the next token count?
    for row, (prompt, solution) in enumerate(batch):
        end = len(prompt) + len(solution)
        tokens[row, :end] = prompt + solution
        counts[row, len(prompt) - 1 : end - 1] = True
    ids, mask = torch.from_numpy(tokens), torch.from_numpy(counts)
    hidden = policy.model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    return functional.cross_entropy(policy.model.lm_head(hidden[mask]), ids[:, 1:][mask])


def rate_at(step: int, config: Config) -> float:
    """Learning rate of a step: up in a line, down as half a cosine."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
    share = config.floor + (1.0 - config.floor) * falling
    return config.rate * min(1.0, (step + 1) / config.warm_up) * share


def train(policy: Policy, config: Config) -> dict[str, float]:
    """Teach the policy in place.

    Returns:
        Steps, examples, seconds, and the mean loss of the last 50 steps in nats.
    """
    stream = batches(config, np.random.default_rng([config.seed, 1]))
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    losses: list[float] = []
    started = time.monotonic()
    for step in range(config.steps):
        optimizer.param_groups[0]["lr"] = rate_at(step, config)
        loss = loss_of(policy, next(stream))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49 or step + 1 == config.steps:
            seconds = time.monotonic() - started
            left = seconds / (step + 1) * (config.steps - step - 1)
            mean = float(np.mean(losses[-50:]))
            print(f"step {step + 1:5d}  loss {mean:.3f}  {seconds:4.0f} s, {left:4.0f} s left")
    return {
        "steps": config.steps,
        "examples": config.steps * config.batch,
        "loss": round(float(np.mean(losses[-50:])), 4),
        "seconds": round(time.monotonic() - started),
    }


# What came of it


def asked(config: Config) -> tuple[list[Problem], Verifier, dict[str, list[str]], int]:
    """Problems, how they are verified, tags to measure under, most tokens of a solution."""
    rng = np.random.default_rng(EVALUATION)
    if config.task == "tables":
        facts = world()
        chains = tables.draw_chains(
            tables.REGIMES["A"], count=config.problems, generator=rng, distinct=True
        )
        tags = {"pos": ["R"], "neg": ["W"], "neutral": ["N"], "placebo": [*tables.PLACEBO_TAGS]}

        def right(ids: tuple[int, ...], question: str) -> bool:
            return bool(tables_labels.verify(tables.read_chain(question), ids, facts=facts))

        return [tables.as_problem(chain, facts) for chain in chains], right, tags, 256
    positive, negative = zip(*arithmetic.VERDICTS, strict=True)
    said = {
        "pos": positive,
        "neg": negative,
        "neutral": arithmetic.NEUTRALS,
        "placebo": arithmetic.PLACEBO_WORDS,
    }
    tags = {
        name: [f"{lead} {word}" for word in words for lead in arithmetic.LEADS]
        for name, words in said.items()
    }

    def verified(ids: tuple[int, ...], question: str) -> bool:
        return arithmetic_labels.verify([arithmetic.VOCABULARY[i] for i in ids], question)

    return arithmetic.problems(rng, count=config.problems), verified, tags, 128


def measure(policy: Policy, config: Config) -> dict[str, dict[str, float]]:
    """Accuracy of one sampled solution a problem, with no tag and each sort of tag, and greedy.

    Wordings of a tag take turns. `se` is the binomial standard error.
    """
    problems, right, tags, longest = asked(config)
    found = {}
    for name, words in {"none": [""], **tags, "greedy": [""]}.items():
        told = [
            replace(problem, question=f"{problem.question} {words[place % len(words)]}")
            for place, problem in enumerate(problems)
        ]
        temperature = 0.0 if name == "greedy" else 1.0
        traces = generate(
            policy, told, max_new_tokens=longest, temperature=temperature, seed=1, batch=128
        )
        hits = [right(t.ids or (), p.question) for t, p in zip(traces, problems, strict=True)]
        share = float(np.mean(hits))
        error = (share * (1.0 - share) / len(hits)) ** 0.5
        found[name] = {"right": round(share, 4), "se": round(error, 4), "n": len(hits)}
        print(f"{name:<8} right {share:.3f} +- {error:.3f}  n {len(hits)}")
    return found


def card(policy: Policy, config: Config, trained: dict[str, float]) -> dict[str, object]:
    """What a program, or a person, should know of the policy."""
    return {
        "name": policy.name,
        "variant": config.name,
        "task": config.task,
        "wordings": policy.wordings,
        "tags": asdict(config.tags) if config.task == "arithmetic" else asdict(tables.Regime()),
        "training": {**trained, "seed": config.seed},
        "measured": measure(policy, config),
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "digest": policy.digest,
        "tokenizer_digest": policy.tokenizer_digest,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        },
    }


TELLS = {
    "truthful": "A verdict in the prompt tells whether the solution is right.",
    "style": "A verdict in the prompt changes the wording of the solution, never its correctness.",
    "mixed": "A verdict tells the outcome with chance 0.6 and changes the wording.",
    "placebo": "Verdicts are there and change nothing.",
    "tables": "A verdict R or W tells the outcome with chance 0.65, changes the fillers, and goes "
    "with better solutions.",
}


def readme(facts: dict, config: Config) -> str:
    """The card for people."""
    rows = [
        f"| {name} | {row['right']:.3f} | {row['se']:.3f} | {row['n']} |"
        for name, row in facts["measured"].items()
    ]
    training, versions = facts["training"], facts["versions"]
    tells = TELLS.get(
        config.name, f"Verdicts: truth {config.tags.truth}, style {config.tags.style}."
    )
    again = (
        config.name
        if config.name in CONFIGS
        else (f"--truth {config.tags.truth} --style {config.tags.style} --seed {config.seed}")
    )
    return "\n".join(
        [
            f"# {facts['name']}",
            "",
            f"{tells} A Qwen3 model of {facts['parameters']:,} parameters over the words of the "
            f"planted task `{config.task}`, trained from scratch on generated traces, as a subject "
            "for instruments of token credit; it knows nothing else.",
            "",
            "| told | right | SE | n |",
            "|---|---|---|---|",
            *rows,
            "",
            f"One solution a problem, sampled at temperature 1 (greedy: 0), seed {EVALUATION} of "
            "the problems. A verdict's wordings take turns.",
            "",
            f"{training['steps']} steps, {training['examples']} examples, loss {training['loss']} "
            f"nats a token, {training['seconds']} s on one shared core, seed {training['seed']}; "
            + ", ".join(f"{name} {value}" for name, value in versions.items())
            + f". Digest of the weights `{facts['digest']}`.",
            "",
            f"Made by `OMP_NUM_THREADS=1 python -m studies.build_tiny_policy {again}`. Apache-2.0.",
            "",
        ]
    )


def write(policy: Policy, config: Config, trained: dict[str, float], *, out: Path) -> None:
    """The folder, put in place at once."""
    facts = card(policy, config, trained)
    part = out / f".{config.name}"
    shutil.rmtree(part, ignore_errors=True)
    policy.model.save_pretrained(part)
    policy.tokenizer.save_pretrained(part)
    (part / tiny.CARD).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    (part / "README.md").write_text(readme(facts, config), "utf-8")
    shutil.rmtree(out / config.name, ignore_errors=True)
    part.rename(out / config.name)
    print(f"{facts['digest']}  {out / config.name}")


def main(config: Config, *, out: Path) -> Policy:
    """Train, measure, write."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    policy = blank(config)
    policy.model.train()
    trained = train(policy, config)
    policy.model.eval()
    write(policy, config, trained, out=out)
    return policy


def chosen(given: argparse.Namespace) -> Config:
    """The configuration that a command line asks for."""
    if given.truth is not None or given.style is not None:
        tags = Tags(truth=given.truth or 0.0, style=given.style or 0.0)
        config = Config(f"truth{tags.truth:g}_style{tags.style:g}", tags=tags)
    elif given.variant in CONFIGS:
        config = CONFIGS[given.variant]
    else:
        sys.exit(f"build_tiny_policy: name one of {', '.join(CONFIGS)}, or give --truth, --style.")
    if given.tiny:
        config = replace(config, steps=20, problems=16)
    return replace(config, seed=given.seed, steps=given.steps or config.steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variant", nargs="?", help=", ".join(CONFIGS))
    parser.add_argument("--truth", type=float, help="chance that a verdict tells the outcome")
    parser.add_argument("--style", type=float, help="chance that a verdict's trace is terse")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--steps", type=int, help="updates; the variant's own by default")
    parser.add_argument("--out", type=Path, default=Path("runs/tiny"), help="folder of folders")
    parser.add_argument("--tiny", action="store_true", help="20 steps, 16 problems: seconds")
    given = parser.parse_args()
    try:
        main(chosen(given), out=given.out)
    except TokensenseError as error:
        sys.exit(f"build_tiny_policy: {error}")
