"""Overlap over the vocabulary: against whole softmaxes, and where context cannot matter."""

import numpy as np
import torch

from tests.bigram import bigram_policy
from tests.builders import imported
from tests.probes.tiny import tiny_policy
from tokensense.probes import CATALOGUE
from tokensense.probes.conditions import BASE_CONDITION
from tokensense.probes.contexts import prompts, read_problems
from tokensense.probes.overlap import overlaps
from tokensense.rollouts.trajectory import assemble


def problems_of(policy):
    return read_problems(assemble(imported(3), policy), policy)


def distributions(policy, prompt, response):
    """Next-token distributions before each response token, one sequence alone, float64."""
    ids = torch.tensor([[*prompt.ids, *response]])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, len(prompt.ids) - 1 : -1]
    return torch.softmax(logits.double(), -1).numpy()


def test_overlap_equals_that_of_whole_distributions():
    policy = tiny_policy()
    problems = problems_of(policy)
    pos, neg = CATALOGUE["opposed"](policy, frames=1)
    rollout = problems.groups[1][0]
    found = overlaps(policy, problems, [(pos, neg)], rollouts=[rollout])
    response = problems.responses[rollout]
    assert found.sizes == {"pair": 1, "token": len(response)}
    asked = prompts(problems, 1, (BASE_CONDITION, pos, neg), encoder=policy)
    base, one, two = (distributions(policy, prompt, response) for prompt in asked)
    g, h = one - base, two - base
    cosine = (g * h).sum(1) / np.sqrt((g * g).sum(1) * (h * h).sum(1))
    np.testing.assert_allclose(found["cosine"][0], cosine, atol=2e-4)
    both = np.where(g * h > 0, np.minimum(abs(g), abs(h)), 0).sum(1)
    shared = both / np.maximum(abs(g), abs(h)).sum(1)
    np.testing.assert_allclose(found["shared"][0], shared, atol=2e-4)
    assert np.ptp(cosine) > 0.05  # so that an error of place would show


def test_where_nothing_moves_there_is_no_direction_and_what_is_not_known_is_nan():
    policy = bigram_policy()
    problems = problems_of(policy)
    pairs = [CATALOGUE["opposed"](policy, frames=1), CATALOGUE["sibling"](policy)[2:]]
    counted = []
    found = overlaps(policy, problems, pairs, rollouts=[0, 2], progress=counted.append)
    lengths = [len(problems.responses[i]) for i in (0, 2)]
    assert found["rollout"].values.tolist() == [0] * lengths[0] + [2] * lengths[1]
    assert np.isnan(found["cosine"]).all()
    assert sum(counted) == 3 * 2 * sum(lengths)
