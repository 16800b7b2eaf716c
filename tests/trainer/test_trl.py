"""The first step beside TRL's GRPOTrainer: same rollouts, same weights, TRL's own everything else.

TRL is looked for here and, if it lives in another environment, in the Python that TOKENSENSE_PEERS
names. Not bit-equal: TRL pads prompts on the left under a mask and takes log-softmax of whole rows,
we pad on the right and sum in tiles, and the shares are multiplied in before the sum. What agrees:
advantages to 1e-6, loss to 1e-6, the gradient to 1e-5 of its largest element.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tokensense.models.tiny import folder
from tokensense.trainer.batches import collect
from tokensense.trainer.config import Objective, TrainConfig
from tokensense.trainer.lesson import Lesson
from tokensense.trainer.problems import planted
from tokensense.trainer.run import own_copy
from tokensense.trainer.update import accumulate

FORMS = {"grpo": "sequence", "dapo": "token", "dr_grpo": "constant"}
CONFIG = TrainConfig(problems=8, group=4, max_new_tokens=64, seed=3)


def python_with_trl():
    """An interpreter that has TRL; skips where there is none."""
    if find_spec("trl") is not None:
        return sys.executable
    named = os.environ.get("TOKENSENSE_PEERS", "")
    if not Path(named).is_file():
        pytest.skip("needs TRL (extra `peers`), here or in the Python that TOKENSENSE_PEERS names")
    return named


@pytest.fixture(scope="module")
def batch(policy):
    return collect(policy, planted("tables", held_out=0, lookups=3), CONFIG, step=0)


@pytest.fixture(scope="module")
def theirs(batch, tmp_path_factory):
    python, out = python_with_trl(), tmp_path_factory.mktemp("trl")
    question = {problem.name: problem.question for problem in batch.problems}
    given = {
        "policy": str(folder("tiny:tables")),
        "scratch": str(out / "scratch"),
        "group": CONFIG.group,
        "most": CONFIG.max_new_tokens,
        "learning_rate": CONFIG.learning_rate,
        "loss_types": list(FORMS),
        "rollouts": [
            {
                "question": question[trace.problem],
                "prompt": list(branch.context),
                "response": list(branch.response),
                "reward": trace.reward,
            }
            for trace, branch in zip(batch.traces, batch.branches, strict=True)
        ],
    }
    (out / "batch.json").write_text(json.dumps(given))
    program = Path(__file__).with_name("trl_step.py")
    command = [python, str(program), str(out / "batch.json"), str(out / "found.safetensors")]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    ran = subprocess.run(
        command, env={**os.environ, **quiet}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return load_file(out / "found.safetensors")


def test_advantages_are_trl_s(theirs, batch):
    length = batch.length.tolist()
    rows = theirs["grpo/response"].tolist()
    ours = {
        branch.response: advantage
        for branch, advantage in zip(batch.branches, batch.advantage, strict=True)
    }
    assert len(set(ours)) == len(length)
    for row, advantage in zip(rows, theirs["grpo/advantages"].tolist(), strict=True):
        (response,) = [r for r in ours if list(r) == row[: len(r)] and not any(row[len(r) :])]
        assert advantage == pytest.approx(ours[response], abs=1e-6)


@pytest.mark.parametrize("loss_type", list(FORMS))
def test_the_first_step_is_trl_s(theirs, batch, policy, loss_type):
    objective = Objective(normalizer=FORMS[loss_type], clip_high=0.28)
    copied = own_copy(policy)
    lesson = Lesson(batch.branches, batch.advantage.repeat(batch.length))
    sums = accumulate(copied, lesson, replace(CONFIG, objective=objective))
    assert sums["loss"] == pytest.approx(theirs[f"{loss_type}/loss"].item(), abs=1e-6)
    named = dict(copied.model.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in named.values())
    for name, parameter in named.items():
        truth = theirs[f"{loss_type}/gradient/{name}"]
        torch.testing.assert_close(parameter.grad, truth, rtol=1e-4, atol=1e-5 * largest)
    optimizer = torch.optim.AdamW(
        named.values(), lr=CONFIG.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
    )
    optimizer.step()
    for name, parameter in named.items():
        # Adam's first step is the sign of the gradient, which rounding decides where it is tiny.
        sure = parameter.grad.abs() > 1e-4 * largest
        found, truth = parameter.detach()[sure], theirs[f"{loss_type}/weight/{name}"][sure]
        torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-6)
