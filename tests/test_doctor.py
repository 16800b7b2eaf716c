"""What the doctor says of good and bad surroundings, policies and stores."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tests.bigram import bigram_policy
from tests.models.zoo import tiny_policy as zoo_policy
from tests.probes.tiny import tiny_policy
from tokensense import doctor
from tokensense.cli import app


def states(checks):
    return {check.name: check.state for check in checks}


def test_this_environment_is_as_required():
    found = states(doctor.environment())
    assert found["packages"] == "ok"
    assert set(found) == {"packages", "devices", "memory", "compiler"}


def test_a_package_that_is_missing_or_too_old_is_a_finding(monkeypatch):
    asked = ["numpy>=99", "no-such-thing>=1", "torch>=1", 'pyarrow>=99; extra == "io"']
    monkeypatch.setattr(doctor, "requires", lambda _: asked)
    first, *_ = doctor.environment()
    assert first.state == "finding"
    assert "no-such-thing is missing" in first.text
    assert "numpy" in first.text
    assert "is not >=99" in first.text
    assert "torch" not in first.text


def test_a_policy_in_order_has_no_finding():
    found = states(doctor.of_policy(tiny_policy()))
    assert "finding" not in found.values()
    assert found["attention"] == found["template"] == found["probe opposed"] == "ok"


def test_a_policy_without_shared_prompts_is_told_what_it_costs():
    checks = {check.name: check for check in doctor.of_policy(zoo_policy("mamba"))}
    assert checks["attention"].state == "note"
    assert "path padded, slower" in checks["attention"].text


def test_arithmetic_that_depends_on_the_row_plan_is_a_finding(monkeypatch):
    policy = bigram_policy()
    monkeypatch.setitem(doctor.FLOORS, "float32", -1.0)
    assert states(doctor.of_policy(policy))["numerical floor"] == "finding"


def test_prompts_that_end_differently_are_a_finding(monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(policy, "render", lambda question, **_: policy.encode(question))
    assert states(doctor.of_policy(policy))["opener"] == "finding"


@pytest.fixture
def store(tmp_path):
    from tests.builders import imported
    from tokensense.rollouts.trajectory import assemble
    from tokensense.store import Archive

    with Archive(tmp_path / "s.zarr") as archive:
        archive.write_rollouts(assemble(imported(2), tiny_policy()))
    return tmp_path / "s.zarr"


def test_the_command_exits_with_1_where_a_store_is_damaged(store):
    good = CliRunner().invoke(app, ["doctor", str(store), "--json"])
    assert good.exit_code == 0, good.output
    assert {c["state"] for c in json.loads(good.stdout)["checks"]} <= {"ok", "note"}
    shutil.rmtree(store / "rollouts" / "token_id" / "c")
    bad = CliRunner().invoke(app, ["doctor", str(store)])
    assert bad.exit_code == 1
    assert "finding" in bad.stdout
