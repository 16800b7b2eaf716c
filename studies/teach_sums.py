"""Teach a model of language the planted sums, until it is right often, and wrong often enough.

    OMP_NUM_THREADS=1 python -m studies.teach_sums --model smollm2.gguf --out runs/smollm2_sums

Training can tell credit rules apart only where right and wrong responses meet in a group. A model
of 135 M parameters is right in hardly any group of GSM8K; on the chains of sums it becomes so by a
short supervised training on written solutions, all right and of many wordings, whose words are
tokens of its own beside blanks: what it samples then is labelled token by token (`labelled`), so
that the first wrong token and the decisive ones are known in a real model of language.

Fresh examples each step, loss on the solution only, AdamW with a warm-up. Every `every` steps a
pilot is sampled at temperature 1 and printed, on the same problems each time; training ends when
its accuracy is `enough`. A policy whose last pilot lies outside [.2, .8] is refused: it is written,
and the exit code is 1. Pilots are in `pilot.csv`, the policy is a folder for `load_policy`.

Cost: about 100 tokens of prompt and solution an example, three forward passes each.
Source: own work. SmolLM2: arXiv:2502.02737.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from studies.rows import written
from tokensense.errors import TokensenseError
from tokensense.models.head import head_of, log_statistics
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.tasks.arithmetic import Chains
from tokensense.tasks.arithmetic_traces import Tags, examples
from tokensense.trainer.checkpoint import save_policy
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.evaluate import evaluate
from tokensense.trainer.lesson import hidden_states
from tokensense.trainer.problems import Task, planted

WITHIN = (0.2, 0.8)


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        steps: at most.
        batch: examples an update.
        rate: of AdamW.
        warm_up: steps up to it.
        every: steps between pilots.
        enough: accuracy of a pilot at which training ends.
        problems: of a pilot.
        longest: tokens of a sampled response.
        tokens_per_row: of a forward and backward pass.
        seed: of examples; pilots have their own.
    """

    steps: int = 160
    batch: int = 16
    rate: float = 1e-4
    warm_up: int = 10
    every: int = 20
    enough: float = 0.4
    problems: int = 64
    longest: int = 112
    tokens_per_row: int = 2048
    seed: int = 0


TINY = Config(steps=2, batch=2, every=1, problems=2, longest=8)
CHAINS = Chains(error_rate=0.0)


def taught(policy: Policy, rng: np.random.Generator) -> Iterator[Branch]:
    """Prompts and right solutions whose words are tokens of the policy, without end."""
    end = policy.tokenizer.eos_token_id
    while True:
        for example in examples(rng, count=64, chains=CHAINS, tags=Tags(share=0.0)):
            ids = policy.encode(" ".join(example.words[:-1]))
            said = (policy.token_bytes(i).decode("utf-8", "replace").strip() for i in ids)
            if [word for word in said if word] == example.words[:-1]:
                yield Branch(tuple(policy.render(example.chain.question)), (*ids, end))


def step(policy: Policy, batch: list[Branch], config: Config) -> float:
    """Add the gradient of the mean negative log-probability of the solutions' tokens, nats."""
    passes = TrainConfig(tokens_per_row=config.tokens_per_row)
    count = sum(len(branch.response) for branch in batch)
    total, head = 0.0, head_of(policy.model)
    for row, hidden in hidden_states(policy, batch, passes):
        targets = torch.from_numpy(row.targets).to(policy.device)
        loss = -log_statistics(hidden, targets, head).logp.sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def pilot(policy: Policy, task: Task, config: Config) -> dict[str, float]:
    """Accuracy of one response a problem at temperature 1, its binomial error, and the length."""
    found = evaluate(policy, task, k=1, max_new_tokens=config.longest, temperature=1.0, seed=0)
    share = float(found["mean"].mean())
    error = (share * (1 - share) / config.problems) ** 0.5
    return {
        "right": round(share, 4),
        "se": round(error, 4),
        "n": config.problems,
        "tokens": round(float(found["length"].mean()), 1),
    }


def main(config: Config, *, out: Path, model: str = "tiny:mixed") -> float:
    """Teach, pilot, write; the last pilot's accuracy.

    Args:
        config: sizes.
        model: hub id, folder, .gguf; the shipped one knows the sums already.
        out: folder of the policy.
    """
    out.mkdir(parents=True, exist_ok=True)
    taken = load_policy(model)
    task = planted("arithmetic", held_out=config.problems)
    stream = taught(taken, np.random.default_rng([config.seed, 1]))
    optimizer = torch.optim.AdamW(taken.model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    pilots: list[dict[str, float]] = []
    began, losses = time.monotonic(), []
    for number in tqdm(range(config.steps + 1), unit="step"):
        if number % config.every == 0:
            loss = round(float(np.mean(losses[-config.every :])), 4) if losses else float("nan")
            seconds = round(time.monotonic() - began)
            known = {"step": number, "loss": loss, "seconds": seconds}
            pilots.append({**known, **pilot(taken, task, config)})
            written(out / "pilot.csv", pilots)
            tqdm.write("  ".join(f"{name} {value:g}" for name, value in pilots[-1].items()))
            if pilots[-1]["right"] >= config.enough:
                break
        if number < config.steps:
            optimizer.param_groups[0]["lr"] = config.rate * min(1, (number + 1) / config.warm_up)
            optimizer.zero_grad()
            losses.append(step(taken, [next(stream) for _ in range(config.batch)], config))
            optimizer.step()
    save_policy(taken, out)
    return pilots[-1]["right"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="hub id, folder, .gguf")
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2_sums"))
    parser.add_argument("--tiny", action="store_true", help="two steps of two examples")
    given = parser.parse_args()
    try:
        right = main(TINY if given.tiny else Config(), model=given.model, out=given.out)
    except TokensenseError as error:
        sys.exit(f"teach_sums: {error}")
    if not WITHIN[0] <= right <= WITHIN[1]:
        sys.exit(f"teach_sums: accuracy must lie in {WITHIN}; it is {right}. Change the steps.")
