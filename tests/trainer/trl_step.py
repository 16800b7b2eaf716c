"""One step of TRL's GRPOTrainer on given rollouts: its advantages, loss, gradient and new weights.

    PYTHON tests/trainer/trl_step.py BATCH.json OUT.safetensors

A program of its own, without tokensense: TRL warns on import, and may live in another environment.
Everything but the sampling is TRL's own. Imports are inside: pytest reads this file for doctests.
"""

import json
import sys
from pathlib import Path


def classes():
    """Subclasses of what TRL and transformers have: a trainer and a callback."""
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    class Given(GRPOTrainer):
        """Takes the rollouts of a file instead of sampling, and keeps what it computes."""

        def __init__(self, rollouts, **settings):
            super().__init__(**settings)
            self.rollouts = rollouts

        def _generate(self, prompts):
            waiting = {}
            for rollout in self.rollouts:
                waiting.setdefault(rollout["question"], []).append(rollout)
            taken = [waiting[prompt[-1]["content"]].pop(0) for prompt in prompts]
            said = [[{"role": "assistant", "content": ""}] for _ in taken]
            prompt_ids = [rollout["prompt"] for rollout in taken]
            response_ids = [rollout["response"] for rollout in taken]
            return prompt_ids, response_ids, None, said, None, {}, None, None

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            self.kept = {"loss": loss.detach().clone(), "advantages": inputs["advantages"].clone()}
            self.kept["response"] = inputs["completion_ids"].clone()
            return loss

    class Gradients(TrainerCallback):
        """Keeps the gradients before the optimizer takes them."""

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            self.found = {name: p.grad.clone() for name, p in model.named_parameters()}

    return Given, Gradients


def step(batch, loss_type):
    """Tensors of one step under one of TRL's loss types."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    Given, Gradients = classes()
    rewards = {(tuple(r["prompt"]), tuple(r["response"])): r["reward"] for r in batch["rollouts"]}
    prompts = {r["question"]: tuple(r["prompt"]) for r in batch["rollouts"]}

    def reward(prompts_, completion_ids, **_):
        pairs = zip(prompts_, completion_ids, strict=True)
        return [rewards[prompts[asked[-1]["content"]], tuple(ids)] for asked, ids in pairs]

    gradients = Gradients()
    trainer = Given(
        batch["rollouts"],
        model=AutoModelForCausalLM.from_pretrained(batch["policy"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(batch["policy"]),
        reward_funcs=lambda prompts, completion_ids, **_: reward(prompts, completion_ids),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": question}]} for question in prompts]
        ),
        callbacks=[gradients],
        args=GRPOConfig(
            output_dir=batch["scratch"],
            per_device_train_batch_size=len(batch["rollouts"]),
            num_generations=batch["group"],
            max_completion_length=batch["most"],
            max_steps=1,
            loss_type=loss_type,
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            learning_rate=batch["learning_rate"],
            lr_scheduler_type="constant",
            optim="adamw_torch",
            adam_beta1=0.9,
            adam_beta2=0.99,
            weight_decay=0.0,
            max_grad_norm=0.0,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=0,
        ),
    )
    trainer.train()
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
    return (
        {f"{loss_type}/{name}": value for name, value in trainer.kept.items()}
        | {f"{loss_type}/gradient/{name}": value for name, value in gradients.found.items()}
        | {f"{loss_type}/weight/{name}": value.clone() for name, value in weights.items()}
    )


def main(source, out):
    """Read the rollouts, write what TRL makes of them."""
    from safetensors.torch import save_file

    batch = json.loads(Path(source).read_text())
    found = {}
    for loss_type in batch["loss_types"]:
        found |= step(batch, loss_type)
    save_file({name: value.contiguous() for name, value in found.items()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
