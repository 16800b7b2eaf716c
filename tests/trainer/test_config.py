import json
import math

import pytest

from tokensense.credit.base import settings_of
from tokensense.errors import SchemaError
from tokensense.trainer.config import DAPO, DR_GRPO, GRPO, SDPO, Objective, TrainConfig


def test_a_config_goes_through_json_unchanged():
    config = TrainConfig(rule="cscr", settings={"gamma": 0.5}, objective=DAPO, max_norm=1.0)
    open_end = TrainConfig(objective=Objective(clip_high=math.inf))
    told = TrainConfig(rule="sdpo", distillation=SDPO)
    for made in (config, open_end, told):
        text = json.dumps(made.as_json(), allow_nan=False)
        assert TrainConfig.from_json(json.loads(text)) == made


def test_the_published_forms():
    assert (GRPO.normalizer, GRPO.clip_low, GRPO.clip_high) == ("sequence", 0.2, 0.2)
    assert (DAPO.normalizer, DAPO.clip_low, DAPO.clip_high) == ("token", 0.2, 0.28)
    assert DR_GRPO.normalizer == "constant"
    assert {form.kl for form in (GRPO, DAPO, DR_GRPO)} == {"none"}


def test_settings_reach_the_rule():
    credit = TrainConfig(rule="cscr", settings={"gamma": 0.8}).credit()
    assert settings_of(credit)["gamma"] == 0.8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group": 1}, "`group`"),
        ({"updates": 40}, r"`updates` needs a value in \[1, 32\]"),
        ({"overlong": 200}, "`overlong`"),
        ({"rule": "nothing"}, "`rule` needs one of"),
        ({"advantage": "best"}, "`advantage` needs one of"),
        ({"settings": {"gamma": 1.0}}, r"setting of this rule.*\[\].*gamma"),
        ({"temperature": 0.0}, "`temperature`"),
        ({"distillation": SDPO}, r"`rule of a distillation` needs one of \['opsd', 'sdpo'\]"),
    ],
)
def test_what_is_not_allowed_is_named(fields, message):
    with pytest.raises(SchemaError, match=message):
        TrainConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"normalizer": "batch"}, "`normalizer` needs one of"),
        ({"kl": "k1"}, "`kl` and `kl_coefficient` need each other"),
        ({"kl_coefficient": 0.1}, "`kl` and `kl_coefficient` need each other"),
        ({"clip_low": 1.5}, "`clip_low`"),
    ],
)
def test_what_an_objective_cannot_be_is_named(fields, message):
    with pytest.raises(SchemaError, match=message):
        Objective(**fields)


def test_an_unknown_field_in_a_file_is_named():
    with pytest.raises(SchemaError, match=r"Objective needs fields of .*'klip'"):
        TrainConfig.from_json({"objective": {"klip": 1}})


def test_differences_leave_out_how_long_a_run_goes_on():
    one, other = TrainConfig(steps=5), TrainConfig(steps=9, seed=1, checkpointing=True)
    assert one.differences(other) == ["seed: 0 -> 1"]
