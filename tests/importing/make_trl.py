"""Two steps of TRL's GRPO on the bundled policy `tiny:mixed`, for its completions parquet.

    python -m tests.importing.make_trl OUT

Writes OUT/completions/completions_00001.parquet and _00002.parquet: what `log_completions=True`
leaves behind. Needs the extra `peers` (trl); a minute on one core. A module of its own, since TRL
warns on import and warnings are errors in the tests.
"""

import sys
from pathlib import Path

from tokensense.tasks.planted import PLANTED

POLICY = Path(__file__).parents[2] / "data" / "tiny" / "mixed"
STEPS, PROBLEMS, GROUP = 2, 8, 4


def right(prompts, completions, **_):
    """1 where the planted task calls the solution right; the end token is not in the text."""
    label = PLANTED["arithmetic"].label
    pairs = zip(prompts, completions, strict=True)
    return [
        float(label(asked[-1]["content"], [*said[0]["content"].split(), "<eos>"]).right)
        for asked, said in pairs
    ]


def main(out):
    """Train and leave the completions in `out`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    problems = PLANTED["arithmetic"].problems(STEPS * PROBLEMS, 0)
    rows = [{"prompt": [{"role": "user", "content": problem.question}]} for problem in problems]
    trainer = GRPOTrainer(
        model=str(POLICY),
        reward_funcs=right,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(out),
            per_device_train_batch_size=PROBLEMS * GROUP,
            num_generations=GROUP,
            max_completion_length=64,
            max_steps=STEPS,
            logging_steps=1,
            log_completions=True,
            beta=0.0,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            seed=0,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
