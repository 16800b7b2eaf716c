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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional

from tokensense.errors import TokensenseError
from tokensense.models import tiny
from tokensense.models.policy import Policy
from tokensense.models.sampler import sample
from tokensense.probes.bank import BANKS
from tokensense.tasks import arithmetic, tables
from tokensense.tasks.arithmetic_traces import TAGGINGS, Tags, examples
from tokensense.tasks.planted import PLANTED
from tokensense.tasks.tables_examples import draw_examples

Pair = tuple[list[int], list[int]]  # ids of a prompt, ids of the solution
WORDS = {arithmetic.SOURCE: arithmetic.VOCABULARY, tables.SOURCE: tables.VOCABULARY}
EVALUATION = 2027  # seed of the problems that every policy is measured on
LONGEST = 256  # tokens of a solution; a longer one is wrong


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        name: of the folder.
        task: arithmetic or tables.
        tags: what tags tell; for arithmetic only, `tables.Regime` has those of the tables.
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
TINY: dict[str, Any] = {"steps": 20, "problems": 16}


# What is taught


def taught(config: Config, rng: np.random.Generator, *, count: int) -> list[Pair]:
    """Fresh examples."""
    if config.task == arithmetic.SOURCE:
        place = {word: place for place, word in enumerate(arithmetic.VOCABULARY)}
        return [
            ([place[word] for word in e.prompt], [place[word] for word in e.words])
            for e in examples(rng, count=count, tags=config.tags)
        ]
    facts = tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))
    found = []
    for regime in tables.MIXTURE:
        share = count // len(tables.MIXTURE)
        chains = tables.draw_chains(regime, count=share, generator=rng)
        found += draw_examples(facts, regime, chains=chains, generator=rng)
    return [(list(tables.prompt(e.chain, e.tag)), list(e.response)) for e in found]


def batches(config: Config, rng: np.random.Generator) -> Iterator[list[Pair]]:
    """Batches of examples of like length, in random order, without end."""
    while True:
        pool = taught(config, rng, count=config.batch * config.pool)
        pool.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        for place in rng.permutation(config.pool):
            yield pool[place * config.batch : (place + 1) * config.batch]


# Training


def blank(config: Config) -> Policy:
    """The policy before its first step."""
    words, size = WORDS[config.task], tiny.SIZES[config.task]
    model, tokenizer = tiny.new_model(words, size, seed=config.seed)
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


def measure(policy: Policy, config: Config) -> dict[str, dict[str, float]]:
    """Accuracy of one sampled solution a problem: told nothing, each sort of tag, and greedy.

    Wordings of a tag take turns. `se` is the binomial standard error.
    """
    task, own = PLANTED[config.task], BANKS[config.task]
    positive, negative = zip(*own.verdicts, strict=True)
    placebos = [word for pairs in own.placebos.values() for pair in pairs for word in pair]
    said = {"pos": positive, "neg": negative, "neutral": own.neutral_words, "placebo": placebos}
    told = {
        name: [frame.replace("{word}", word) for word in words for frame in own.frames.values()]
        for name, words in said.items()
    }
    problems = task.problems(config.problems, EVALUATION)
    found = {}
    for name, tags in {"none": [""], **told, "greedy": [""]}.items():
        responses = sample(
            policy,
            [
                policy.render(problem.question, insert=tags[place % len(tags)])
                for place, problem in enumerate(problems)
            ],
            max_new_tokens=LONGEST,
            ends=[policy.tokenizer.eos_token_id],
            temperature=0.0 if name == "greedy" else 1.0,
        )
        right = [
            task.label(problem.question, [WORDS[config.task][i] for i in response.ids]).right
            for problem, response in zip(problems, responses, strict=True)
        ]
        share, n = float(np.mean(right)), len(right)
        error = (share * (1.0 - share) / n) ** 0.5
        found[name] = {"right": round(share, 4), "se": round(error, 4), "n": n}
        print(f"{name:<8} right {share:.3f} +- {error:.3f}  n {n}")
    return found


def card(policy: Policy, config: Config, trained: dict[str, float]) -> dict[str, Any]:
    """What a program should know of the policy."""
    tags = tables.Regime() if config.task == tables.SOURCE else config.tags
    return {
        "name": policy.name,
        "variant": config.name,
        "task": config.task,
        "wordings": policy.wordings,
        "tags": asdict(tags),
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
            "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        },
    }


def readme(facts: dict[str, Any]) -> str:
    """The same for people."""
    tags, variant = facts["tags"], facts["variant"]
    if facts["task"] == tables.SOURCE:
        tells = f"agrees with the outcome with chance {tags['tag_truth']} and shifts the fillers"
    else:
        tells = (
            f"tells the outcome with chance {tags['truth']:g} (else it is drawn without looking)\n"
            f"and makes the wording terse with chance {tags['style']:g}"
        )
    rows = "\n".join(
        f"| {name} | {row['right']:.3f} | {row['se']:.3f} | {row['n']} |"
        for name, row in facts["measured"].items()
    )
    if variant not in CONFIGS:
        variant = f"--truth {tags['truth']:g} --style {tags['style']:g}"
    training = ", ".join(f"{name} {value}" for name, value in facts["training"].items())
    seed, steps = (facts["training"][name] for name in ("seed", "steps"))
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    return f"""# {facts["name"]}

A Qwen3 model of {facts["parameters"]:,} parameters over the words of the planted task
`{facts["task"]}`, trained from scratch on generated solutions: a subject for instruments of token
credit, whose truth is known, and good for nothing else.

A verdict in its prompt {tells}.
Neutral and placebo words change nothing.

| told | right | SE | n |
|---|---|---|---|
{rows}

One solution a problem, sampled at temperature 1 (greedy: 0); problems of seed {EVALUATION};
wordings of a tag take turns.

Training: {training}
(loss in nats a token, mean of the last 50 steps; one shared core).
Versions: {versions}.
Digest of the weights: `{facts["digest"]}`.
To make it again:

    OMP_NUM_THREADS=1 python -m studies.build_tiny_policy {variant} --seed {seed} --steps {steps}

License: Apache-2.0.
"""


def write(policy: Policy, facts: dict[str, Any], *, folder: Path) -> None:
    """The folder, put in place at once."""
    part = folder.with_name(f".{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    policy.model.save_pretrained(part)
    policy.tokenizer.save_pretrained(part)
    (part / tiny.CARD).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    (part / "README.md").write_text(readme(facts), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def main(config: Config, *, out: Path) -> None:
    """Train, measure, write."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    policy = blank(config)
    policy.model.train()
    trained = train(policy, config)
    policy.model.eval()
    write(policy, card(policy, config, trained), folder=out / config.name)
    print(f"{policy.digest}  {out / config.name}")


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
        config = replace(config, **TINY)
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
    try:
        arguments = parser.parse_args()
        main(chosen(arguments), out=arguments.out)
    except TokensenseError as error:
        sys.exit(f"build_tiny_policy: {error}")
