"""The benchmark of the scorer: its peers give the same numbers, its floor is what it says."""

import json

import numpy as np
import pytest
import torch

from studies.scoring_jobs import JOBS, job
from studies.scoring_peers import PEERS, reference
from studies.scoring_speed import floor_work, table
from tests.models.test_scorer import some_branches
from tests.models.zoo import tiny_policy
from tokensense.models.plan import Branch
from tokensense.models.scorer import score

OWN = [*[name for name in PEERS if name in ("one at a time", "padded")], "reference"]


@pytest.fixture(scope="module")
def llama():
    return tiny_policy("llama")


@pytest.mark.parametrize("name", OWN)
def test_a_peer_gives_what_the_scorer_gives(llama, name):
    branches = some_branches()
    peer = reference if name == "reference" else PEERS[name]
    with torch.inference_mode():
        theirs = peer(llama, branches, 4)
    for one, other in zip(score(llama, branches), theirs, strict=True):
        np.testing.assert_allclose(one.logp, other.float().numpy(), rtol=0, atol=1e-4)


def test_the_floor_counts_shared_tokens_once(llama):
    # A prompt of 3 once; two responses of 2, of which one token each is fed; four are scored.
    branches = [Branch((1, 2, 3), (4, 5)), Branch((1, 2, 3), (6, 7))]
    config = llama.model.config
    hidden, inner, pair = config.hidden_size, config.intermediate_size, 2 * 2 * 8
    layer = hidden * (hidden + pair + hidden) + 3 * hidden * inner
    # Keys seen by the five: 1 + 2 + 3 + 4 + 4; 2 layers of 4 heads, 8 wide, two products.
    attention = 4 * 4 * 8 * (2 * (1 + 2 + 3 + 4 + 4))
    expected = 2 * 2 * layer * 5 + 2 * hidden * 300 * 4 + attention
    assert floor_work(llama, branches) == expected


@pytest.mark.parametrize("name", JOBS)
def test_jobs_have_the_shape_they_say(llama, name, tmp_path):
    lines = [
        {"question": f"What is {n}?", "solutions": [{"solution": f"{n}{k}."} for k in range(4)]}
        for n in range(40)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    asked, found = JOBS[name], job(name, llama, data=data, quick=True)
    assert len(found) == asked.group * len(asked.conditions)
    assert len({branch.context for branch in found}) == len(asked.conditions)
    assert len({branch.response for branch in found}) == asked.group


def test_the_table_has_medians_ranges_and_ratios_to_ours():
    def line(variant, seconds):
        figures = {"scored": "100", "seconds": str(seconds), "floor": "1", "peak_mib": "7"}
        names = {"job": "short", "dtype": "float32", "variant": variant, "batch": "4"}
        return {**names, **figures, "error_max": "nan", "error_mean": "nan"}

    lines = [line("ours", s) for s in (2, 4, 2)] + [line("padded", s) for s in (5, 6, 7)]
    _, ours, padded = table(lines).splitlines()
    assert ours.split()[2:9] == ["ours", "50", "(25-50)", "1.00", "50", "%", "7"]
    assert padded.split()[2:9] == ["padded", "17", "(14-20)", "3.00", "17", "%", "7"]
