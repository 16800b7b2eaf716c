import json
import subprocess

import pytest

from tokensense.store import provenance


def test_the_stamp_says_with_what_and_not_when():
    one, two = provenance.stamp(), provenance.stamp()
    assert one == two
    assert set(one) == {"packages", "git", "python", "platform", "command"}
    assert {"tokensense", "numpy", "xarray", "zarr"} <= set(one["packages"])
    json.dumps(one, allow_nan=False)


def test_packages_that_are_not_there_are_left_out(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("numpy", "no-such-package"))
    assert list(provenance.stamp()["packages"]) == ["numpy"]


def git(folder, *arguments):
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


def test_git_state_is_that_of_the_code_and_of_nobody_elses_repository(tmp_path):
    assert provenance.git_state(tmp_path) is None
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1")
    git(tmp_path, "init")
    (tmp_path / "other.txt").write_text("1")
    git(tmp_path, "add", "other.txt")
    git(tmp_path, "commit", "-m", "a")
    # In the repository, but not tracked: an environment inside somebody's checkout.
    assert provenance.git_state(package) is None
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-m", "b")
    state = provenance.git_state(package)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "other.txt").write_text("2")
    (package / "new.py").write_text("1")
    assert provenance.git_state(package)["dirty"] is False
    (package / "a.py").write_text("2")
    assert provenance.git_state(package) == {"commit": state["commit"], "dirty": True}


def test_without_git_there_is_no_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state(tmp_path) is None


def test_identity_is_compared_where_both_name_it():
    one = {"policy_digest": "a", "tokenizer_digest": "t", "scoring": 1}
    assert provenance.identity_differences(one, {"tokenizer_digest": "t", "scoring": 2}) == []
    assert provenance.identity_differences(one, {"policy_digest": "b"}) == [
        "policy_digest is 'a' in the store, 'b' now"
    ]


def test_environment_differs_by_versions_only():
    one = {"python": "3.11", "packages": {"torch": "2.13"}, "command": "a", "git": None}
    assert provenance.environment_differences(one, {**one, "command": "b", "git": {}}) == []
    two = {**one, "packages": {"torch": "2.14"}}
    assert provenance.environment_differences(one, two) == [
        "torch is '2.13' in the store, '2.14' now"
    ]


def test_the_history_survives_a_torn_line(tmp_path):
    assert provenance.history(tmp_path) == []
    provenance.log(tmp_path, "written", node="/rollouts")
    with (tmp_path / provenance.HISTORY).open("a") as file:
        file.write('{"time": "2026')
    provenance.log(tmp_path, "assembled", node="/probes/x", missing=3)
    found = provenance.history(tmp_path)
    assert [line["event"] for line in found] == ["written", "assembled"]
    assert found[1]["missing"] == 3
    assert {"time", "host", "pid"} <= set(found[0])


def test_values_that_json_cannot_hold_are_our_own_mistake(tmp_path):
    with pytest.raises(TypeError):
        provenance.log(tmp_path, "written", what=object())
