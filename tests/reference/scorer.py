"""Slow plain reference of the scorer: one sequence at a time, softmax in float64.

Imports torch and transformers only, nothing of tokensense. "float64" is the softmax: the body of a
transformers model stays float32, its norms, rope and attention cast to it.
"""

import torch
from transformers import PreTrainedModel


def reference_scores(
    model: PreTrainedModel, context: list[int], response: list[int], temperature: float = 1.0
) -> dict[str, list[float]]:
    """logp, entropy, p_max and p_square_sum of each response token, by the model's own head."""
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([context + response]), use_cache=False).logits[0]
    found: dict[str, list[float]] = {"logp": [], "entropy": [], "p_max": [], "p_square_sum": []}
    for place, token in enumerate(response, start=len(context)):
        # Logits at one place are about the token at the next.
        z = logits[place - 1].double() / temperature
        p = torch.softmax(z, dim=0)
        found["logp"].append(float(z[token] - torch.logsumexp(z, dim=0)))
        found["entropy"].append(float(torch.special.entr(p).sum()))
        found["p_max"].append(float(p.max()))
        found["p_square_sum"].append(float((p * p).sum()))
    return found
