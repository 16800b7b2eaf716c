"""Centers of a store: the vectors are those of its tokens, the results are kept."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.probes.tiny import tiny_policy
from tests.test_study import scored_study
from tokensense.centering import centers
from tokensense.cli import app
from tokensense.credit.advantages import ADVANTAGES
from tokensense.credit.delta import dense, row_gradient
from tokensense.errors import StoreError
from tokensense.models.plan import Branch
from tokensense.probes.proxies import head_view
from tokensense.segments import broadcast
from tokensense.stats.centers import center_numbers


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return scored_study(tmp_path_factory.mktemp("centering"))


def test_numbers_are_those_of_one_pass_over_prompts_and_responses(study):
    policy = tiny_policy()
    found = centers(study, policy, resamples=100)
    rollouts = study.archive().rollouts()
    prompts = np.split(rollouts["prompt_id"].values,
                       np.cumsum(rollouts["prompt_length"].values)[:-1])  # fmt: skip
    length = rollouts["length"].values.astype(np.int64)
    responses = np.split(rollouts["token_id"].values, np.cumsum(length)[:-1])
    group = rollouts["problem_of"].values.astype(np.int64)
    branches = [
        Branch(tuple(prompts[p].tolist()), tuple(r.tolist()))
        for p, r in zip(group, responses, strict=True)
    ]
    view = head_view(policy, branches)
    vectors = row_gradient(view.hidden, view.logp)
    advantage = ADVANTAGES["group_std"](rollouts["reward"].values.astype(np.float64), group)
    expected = center_numbers(dense(vectors), broadcast(advantage, length))
    one = found["centers"].sel(score="all tokens")
    for name in ("cosine", "contrast", "cancellation", "tilt"):
        assert float(one["estimate"].sel(statistic=name)) == pytest.approx(expected[name], rel=1e-6)
    kept = study.results()
    assert set(found) == {"centers", "center_lambda", "center_types"} <= set(kept)
    np.testing.assert_array_equal(kept["centers"]["estimate"], found["centers"]["estimate"])


def test_the_command_says_the_numbers_of_all_tokens(study):
    model = study.path.parent / "policy"
    ran = CliRunner().invoke(app, ["centers", str(study.path), "--model", str(model), "--json",
                                   "--resamples", "100"])  # fmt: skip
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert {"cosine", "contrast", "tilt", "tokens"} <= told.keys()
    ran = CliRunner().invoke(app, ["centers", str(study.path), "--model", str(model),
                                   "--resamples", "100"])  # fmt: skip
    assert f"{told['cosine']:.4f}" in ran.stdout
    assert f"{told['shuffled']['cosine']:.4f}" in ran.stdout
    assert "advantages shuffled" in ran.stdout


def test_another_policy_than_the_stores_is_refused(study):
    other = tiny_policy(seed=1)
    with pytest.raises(StoreError, match="need the policy that scored the store"):
        centers(study, other)


def test_a_store_too_small_for_token_types_has_centers_and_their_figure(tmp_path):
    small = scored_study(tmp_path, limit=1)
    found = centers(small, tiny_policy(), resamples=100)
    assert found["center_types"].sizes["type"] == 0
    drawn = small.figures(tmp_path / "figures", which="centers")
    assert {"centers", "center_lambda"} == set(drawn["figures"])
