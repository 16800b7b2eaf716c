"""TRL's GRPOTrainer with token credit: the subclass that puts our rules where its advantages are.

Reads  a rule's name; TRL's batches.
Gives  credit_trainer: a subclass of `trl.GRPOTrainer`, used like it.
Sign   TRL's: a positive advantage makes the token likelier.

TRL takes advantages of shape (B, T) (`_compute_loss`, TRL 1.16); the subclass replaces the (B,)
ones after `_generate_and_score_completions` by credit. Everything else is TRL's: `uniform` gives
its loss to the last bit. Groups, rewards and token ids are TRL's own: rewards as it sums them
(`reward_weights`), caught where they are calculated, a group the `num_generations` responses that
it samples side by side, over all processes. A group that is split between processes is seen in
part by rules that compare its responses. All other evidence comes from passes of our own:
`old_per_token_logps` is absent with one update a batch, so log-probabilities, entropy and shifts
are scored by `models.scorer` under the weights that sampled.

Source: huggingface/trl 1.16.0, trainer/grpo_trainer.py; notes/engineering.md section 6.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tokensense.adapters.matrix import credit_matrix
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Credit
from tokensense.errors import MissingExtraError, PolicyError, SchemaError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import Scores, score
from tokensense.stats.shifts import onehot_distance

if TYPE_CHECKING:
    from trl import GRPOTrainer

# Evidence that a pass under the prompt alone gives, by field of `Scores`.
BASE_EVIDENCE = ("logp", "entropy", "distance")
# Evidence that the batch and its trainer have.
OWN_EVIDENCE = frozenset({"key", "group", "reward", "token_id"})


def credit_trainer(
    rule: str | Credit, *, told: Mapping[str, str] | None = None
) -> "type[GRPOTrainer]":
    """A `GRPOTrainer` whose tokens get the credit of a rule.

    Args:
        rule: name in `tokensense.credit.CATALOGUE`, or a rule.
        told: for rules that read shifts, evidence name -> text that is put behind the question, as
            {"z_pos": "Label on the solution below: correct.", "z_neg": "...: wrong."}. The shift is
            log p with the text minus log p without; one forward pass a text.

    Returns:
        The class; its arguments are TRL's. The prompts of its data set are texts, or conversations
        of one user message.

    Raises:
        MissingExtraError: TRL is not installed.
        SchemaError: an unknown rule, or one that needs evidence that is neither scored here nor
            told.
    """
    chosen = _rule(rule, told or {})
    try:
        from trl import GRPOTrainer
    except ImportError as cause:
        raise MissingExtraError(
            "this adapter needs TRL 1.16 or later, which is not installed. To get it: "
            'pip install -c constraints.txt "tokensense[peers]".'
        ) from cause

    class CreditGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
        """GRPOTrainer with credit a token; see `adapters.trl`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 (TRL's)
            super().__init__(*args, **kwargs)
            if self.importance_sampling_level == "sequence":
                raise SchemaError(
                    "token credit needs importance_sampling_level='token'; it is 'sequence', whose "
                    "one ratio a response makes token weights something else than GSPO. Use the "
                    "stock trainer for GSPO."
                )

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 (TRL's)
            found: Tensor = super()._calculate_rewards(*args, **kwargs)
            self._every_reward = found
            return found

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
            batch["advantages"] = batch_credit(
                chosen,
                batch,
                policy=self._policy(),
                prompts=[line["prompt"] for line in inputs],
                told=told or {},
                known=self._known(len(inputs)),
            )
            return batch

        def _known(self, count: int) -> dict[str, Tensor]:
            """Group and reward of this process's responses."""
            weights = self.reward_weights.to(self._every_reward.device)
            reward = (self._every_reward * weights).nansum(dim=1)
            reward[self._every_reward.isnan().all(dim=1)] = torch.nan  # nobody could judge it
            training = self.model.training
            size = self.num_generations if training else self.num_generations_eval
            group = torch.arange(len(reward), device=reward.device) // size
            first = self.accelerator.process_index * count
            own = slice(first, first + count)
            return {"group": group[own], "reward": reward[own]}

        def _policy(self) -> Policy:
            """The model as it is now; its training mode is kept."""
            model = self.accelerator.unwrap_model(self.model)
            training = model.training
            policy = Policy(model, self.processing_class, name="trained by TRL")
            model.train(training)
            return policy

    return CreditGRPOTrainer


def batch_credit(
    rule: Credit,
    batch: Mapping[str, Tensor],
    *,
    policy: Policy,
    prompts: Sequence[object],
    told: Mapping[str, str],
    known: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Credit (B, T) of one of TRL's batches.

    Args:
        rule: what deals the credit.
        batch: as TRL's `_generate_and_score_completions` returns it.
        policy: the model that sampled, its tokenizer.
        prompts: of the data set, one a response; read only for texts that are told.
        told: see `credit_trainer`.
        known: `group` and `reward` of each response, for rules that read them.

    Raises:
        PolicyError: a prompt is no single user message, where a text has to be told.
        SchemaError: the rule reads a group or a reward that is not in `known`, or is not finite.
    """
    mask = batch["completion_mask"].bool()
    written = batch["tool_mask"].bool() if "tool_mask" in batch else None
    evidence: dict[str, Tensor] = {}
    needed = rule.needs - OWN_EVIDENCE
    if needed:
        responses = [tuple(ids[kept].tolist()) for ids, kept in _rows(batch, "completion")]
        base = [
            Branch(tuple(ids[kept].tolist()), response)
            for (ids, kept), response in zip(_rows(batch, "prompt"), responses, strict=True)
        ]
        plain = score(policy, base)
        evidence |= {
            name: _padded(_column(plain, name), mask) for name in needed & set(BASE_EVIDENCE)
        }
        for name, text in told.items():
            moved = score(
                policy,
                [
                    Branch(_told(policy, prompt, text, base=branch.context), branch.response)
                    for prompt, branch in zip(prompts, base, strict=True)
                ],
            )
            shifts = [a.logp - b.logp for a, b in zip(moved, plain, strict=True)]
            evidence[name] = _padded([torch.from_numpy(s) for s in shifts], mask)
    own = {
        "key": torch.arange(len(mask), device=mask.device),
        "token_id": batch["completion_ids"],
        **(known or {}),
    }
    evidence |= {name: own[name] for name in rule.needs & own.keys()}
    return credit_matrix(rule, batch["advantages"], mask, written=written, evidence=evidence)


def _rule(rule: str | Credit, told: Mapping[str, str]) -> Credit:
    """The rule, with all that it needs to be had."""
    if isinstance(rule, str) and rule not in CATALOGUE:
        raise SchemaError(
            f"`rule` needs one of {sorted(CATALOGUE)}; it is {rule!r}. Name one, or give a Credit."
        )
    chosen = CATALOGUE[rule] if isinstance(rule, str) else rule
    missing = chosen.needs - OWN_EVIDENCE - set(BASE_EVIDENCE) - set(told)
    if missing:
        raise SchemaError(
            f"the rule needs the evidence {sorted(missing)}, which this adapter has only by texts "
            f"that are told; `told` has {sorted(told)}. Give a text for each."
        )
    return chosen


def _rows(batch: Mapping[str, Tensor], part: str) -> "zip[tuple[Tensor, Tensor]]":
    """Ids and mask of each row of prompts or completions."""
    return zip(batch[f"{part}_ids"], batch[f"{part}_mask"].bool(), strict=True)


def _column(scores: Sequence[Scores], name: str) -> list[Tensor]:
    """A base evidence of each response."""
    if name == "distance":
        return [torch.from_numpy(onehot_distance(s.logp, s.p_square_sum)) for s in scores]
    return [torch.from_numpy(getattr(s, name)) for s in scores]


def _padded(columns: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Values of each response's tokens at the places of the mask, float32."""
    found = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    found[mask] = torch.cat(list(columns)).to(found)
    return found


def _told(policy: Policy, prompt: object, text: str, *, base: tuple[int, ...]) -> tuple[int, ...]:
    """Ids of a prompt with a text put behind its question."""
    messages = [] if isinstance(prompt, str) or not isinstance(prompt, Sequence) else list(prompt)
    if len(messages) != 1 or messages[0].get("role") != "user":
        raise PolicyError(
            f"telling the policy something needs prompts of one user message; this one is "
            f"{str(prompt)[:120]!r}. Use a rule that reads no shifts for other prompts."
        )
    question = str(messages[0]["content"])
    if tuple(policy.render(question)) != base:
        raise PolicyError(
            "telling the policy something needs TRL's prompt ids to be those that we render; they "
            f"differ for {question[:120]!r}. Leave chat_template_kwargs and tools away."
        )
    return tuple(policy.render(question, insert=text))
