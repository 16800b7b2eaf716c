"""Other ways to score the same branches, each through the peer's own functions where it has them.

Reads  a Policy, branches in the order of falling length, sequences a batch.
Gives  PEERS: name -> log-probabilities of each branch's response, (token,) nats each; lm-eval gives
       sums only, minicons and lm-eval no entropy, so these do less work than ours.

`one at a time` and `padded` are what a researcher writes first. `TRL logits_to_keep` is TRL's older
form, put together from its helpers; `TRL 1.16` calls the trainer's method unbound.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tokensense.models.plan import Branch
from tokensense.models.policy import Policy

Found = list[Tensor]


def one_at_a_time(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """Full logits of one sequence, log-softmax of all; `batch` is 1 whatever was asked."""
    del batch
    found = []
    for context, response in branches:
        ids = torch.tensor([[*context, *response]])
        logits = policy.model(input_ids=ids, use_cache=False).logits[0].float()
        log_p = torch.log_softmax(logits, -1)
        _ = -(log_p.exp() * log_p).sum(-1)  # the entropy, as ours gives it
        found.append(_chosen(log_p, context, response))
    return found


def reference(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """As `one_at_a_time`, softmax in float64: what errors are measured against."""
    del batch
    found = []
    for context, response in branches:
        ids = torch.tensor([[*context, *response]])
        hidden = policy.model(input_ids=ids, use_cache=False).logits[0, len(context) - 1 : -1]
        log_p = torch.log_softmax(hidden.double(), -1)
        found.append(log_p.gather(1, torch.tensor(response)[:, None])[:, 0])
    return found


def padded(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """Padding on the right with a mask, full logits."""
    found = []
    for part in _batches(branches, batch):
        ids, mask = _right(part)
        logits = policy.model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
        log_p = torch.log_softmax(logits, -1)
        _ = -(log_p.exp() * log_p).sum(-1)
        found += [_chosen(row, *branch) for row, branch in zip(log_p, part, strict=True)]
    return found


def trl_logits_to_keep(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """Prompts padded on the left, responses on the right, logits of the responses alone."""
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    found = []
    for part in _batches(branches, batch):
        ids, mask, keep = _two_sided(part)
        logits = policy.model(
            input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1, use_cache=False
        ).logits[:, :-1]
        log_p = selective_log_softmax(logits, ids[:, -keep:])
        entropy_from_logits(logits)
        found += [row[: len(b.response)] for row, b in zip(log_p, part, strict=True)]
    return found


def trl_now(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """`GRPOTrainer._get_per_token_logps_and_entropies` with the fused head, called unbound."""
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    model: Any = policy.model
    if not getattr(model, "_fused_for_study", False):
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model._fused_for_study = True
    trainer: Any = SimpleNamespace(
        accelerator=SimpleNamespace(autocast=nullcontext, is_main_process=True)
    )
    found = []
    for part in _batches(branches, batch):
        ids, mask, keep = _two_sided(part)
        log_p, _, _ = GRPOTrainer._get_per_token_logps_and_entropies(
            trainer, model, ids, mask, keep, batch_size=batch, compute_entropy=True
        )
        found += [row[: len(b.response)] for row, b in zip(log_p, part, strict=True)]
    return found


def minicons(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """`IncrementalLMScorer.compute_stats` on given ids; no entropy."""
    from minicons.scorer import IncrementalLMScorer
    from transformers import BatchEncoding

    policy.tokenizer.pad_token = policy.tokenizer.pad_token or policy.tokenizer.eos_token
    scorer = IncrementalLMScorer(policy.model, "cpu", tokenizer=policy.tokenizer)
    found = []
    for part in _batches(branches, batch):
        ids, mask = _right(part)
        encoded = BatchEncoding({"input_ids": ids, "attention_mask": mask})
        offsets = [len(b.context) - 1 for b in part]
        scores = scorer.compute_stats((encoded, offsets), return_tensors=True)
        found += list(scores)
    return found


def lm_eval(policy: Policy, branches: Sequence[Branch], batch: int) -> Found:
    """`HFLM._loglikelihood_tokens`: sums over responses, no entropy; sorts by itself."""
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=policy.model, tokenizer=policy.tokenizer, batch_size=batch)
    requests = [(("", ""), list(b.context), list(b.response)) for b in branches]
    return [
        torch.tensor([total])
        for total, _ in model._loglikelihood_tokens(requests, disable_tqdm=True)
    ]


PEERS: dict[str, Callable[[Policy, Sequence[Branch], int], Found]] = {
    "one at a time": one_at_a_time,
    "padded": padded,
    "TRL logits_to_keep": trl_logits_to_keep,
    "TRL 1.16": trl_now,
    "minicons": minicons,
    "lm-eval": lm_eval,
}


def _batches(branches: Sequence[Branch], batch: int) -> Iterator[Sequence[Branch]]:
    for start in range(0, len(branches), batch):
        yield branches[start : start + batch]


def _right(part: Sequence[Branch]) -> tuple[Tensor, Tensor]:
    """Ids padded on the right, and their mask."""
    lines = [[*b.context, *b.response] for b in part]
    ids = torch.zeros(len(lines), max(map(len, lines)), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = torch.tensor(line)
        mask[row, : len(line)] = 1
    return ids, mask


def _two_sided(part: Sequence[Branch]) -> tuple[Tensor, Tensor, int]:
    """Ids with contexts padded on the left and responses on the right, mask, response columns."""
    before = max(len(b.context) for b in part)
    keep = max(len(b.response) for b in part)
    ids = torch.zeros(len(part), before + keep, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, (context, response) in enumerate(part):
        span = slice(before - len(context), before + len(response))
        ids[row, span] = torch.tensor([*context, *response])
        mask[row, span] = 1
    return ids, mask, keep


def _chosen(log_p: Tensor, context: Sequence[int], response: Sequence[int]) -> Tensor:
    """Log-probabilities of a response from all rows of its sequence."""
    rows = log_p[len(context) - 1 : len(context) + len(response) - 1]
    return rows.gather(1, torch.tensor(response)[:, None])[:, 0]
