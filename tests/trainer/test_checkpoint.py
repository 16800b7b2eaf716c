import json
import math
from dataclasses import replace

import pytest
import torch

from tokensense.errors import StoreError
from tokensense.models.policy import load_policy
from tokensense.trainer.checkpoint import OPTIMIZER, POLICY, STATE, Identity, newest, restore, save
from tokensense.trainer.run import own_copy

RECORDS = [{"kind": "step", "step": 1, "loss": math.nan}]


@pytest.fixture
def run(policy, config):
    """A policy one step away from its start, its optimizer, and its identity."""
    copied = own_copy(policy)
    optimizer = torch.optim.AdamW(copied.model.parameters(), lr=0.1)
    sum((p**2).sum() for p in copied.model.parameters()).backward()
    optimizer.step()
    return copied, optimizer, Identity(policy.digest, "task", config)


def test_what_is_saved_comes_back_to_the_last_bit(run, tmp_path):
    policy, optimizer, identity = run
    save(tmp_path, policy, optimizer, step=7, records=RECORDS, identity=identity)
    saved = newest(tmp_path, identity, device="cpu", dtype="float32")
    assert saved.step == 7
    assert [record["step"] for record in saved.records] == [1]
    assert math.isnan(saved.records[0]["loss"])
    assert saved.policy.digest == policy.digest
    assert (saved.policy.name, saved.policy.wordings) == (policy.name, policy.wordings)
    again = torch.optim.AdamW(saved.policy.model.parameters(), lr=0.1)
    rng = torch.get_rng_state()
    torch.manual_seed(1)
    restore(again, saved)
    assert torch.equal(torch.get_rng_state(), rng)
    pairs = zip(policy.model.parameters(), saved.policy.model.parameters(), strict=True)
    for old, new in pairs:
        assert optimizer.state[old].keys() == again.state[new].keys() != set()
        for part, value in optimizer.state[old].items():
            assert torch.equal(value, again.state[new][part])


def test_a_checkpoint_is_a_policy_that_can_be_loaded(run, tmp_path):
    policy, optimizer, identity = run
    folder = save(tmp_path, policy, optimizer, step=1, records=[], identity=identity)
    assert load_policy(folder / POLICY).digest == policy.digest
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".safetensors", ".jinja"}


def test_the_newest_stays_and_half_written_ones_do_not_count(run, tmp_path):
    policy, optimizer, identity = run
    save(tmp_path, policy, optimizer, step=1, records=[], identity=identity)
    (tmp_path / ".step-000009.partial").mkdir()
    save(tmp_path, policy, optimizer, step=10, records=[], identity=identity)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000010"]
    assert newest(tmp_path, identity, device="cpu", dtype="float32").step == 10


def test_the_same_step_gets_the_newer_history_only(run, tmp_path):
    policy, optimizer, identity = run
    folder = save(tmp_path, policy, optimizer, step=1, records=[], identity=identity)
    before = (folder / OPTIMIZER).stat().st_mtime_ns
    save(tmp_path, policy, optimizer, step=1, records=[{"kind": "step"}], identity=identity)
    assert json.loads((folder / STATE).read_text())["records"] == [{"kind": "step"}]
    assert (folder / OPTIMIZER).stat().st_mtime_ns == before


def test_an_empty_folder_has_no_checkpoint(run, tmp_path):
    assert newest(tmp_path, run[2], device="cpu", dtype="float32") is None


def test_a_checkpoint_of_another_run_or_format_is_refused(run, tmp_path):
    policy, optimizer, identity = run
    folder = save(tmp_path, policy, optimizer, step=1, records=[], identity=identity)
    for other, message in (
        (identity._replace(task="other"), r"these differ: task: task -> other"),
        (identity._replace(config=replace(identity.config, group=9)), r"group: 4 -> 9"),
    ):
        with pytest.raises(StoreError, match=message):
            newest(tmp_path, other, device="cpu", dtype="float32")
    longer = identity._replace(config=replace(identity.config, steps=99))
    assert newest(tmp_path, longer, device="cpu", dtype="float32").step == 1
    state = json.loads((folder / STATE).read_text())
    (folder / STATE).write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(StoreError, match=r"format 1 is needed; .* has 99"):
        newest(tmp_path, identity, device="cpu", dtype="float32")
