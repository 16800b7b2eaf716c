"""Any sequence of appends, kills, repairs and migrations ends in a consistent store.

A kill is what is on the disk at one step of writing: at that step the store is copied, and the copy
is gone on with, its holder marked as a process that is no more. `test_kill.py` kills real ones.
"""

import json
import shutil
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.store import driver
from tests.store.test_coverage import probe
from tokensense.rollouts.joining import joined
from tokensense.schema import PROBE, ROLLOUTS
from tokensense.store import Archive, coverage, health, layout, migration, tree
from tokensense.store.lock import this_process
from tokensense.store.migration import UNKNOWN, migrate
from tokensense.store.tree import METADATA, WORK

# None: nothing goes wrong. Else the number of the step of writing at which the process dies.
KILLS = st.one_of(st.none(), st.integers(1, 14))
NAMES = st.sampled_from(["opposed", "neutral"])


class KilledError(BaseException):
    """The process is no more."""


class Sequences(RuleBasedStateMachine):
    """A store, and what it has to hold."""

    def __init__(self):
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.copies = count()
        self.path = self.root / "0.zarr"
        self.rollouts = None  # what the store has to hold
        self.number = 0  # of the last value of /stats/x
        self.seeds = count()

    def teardown(self):
        """Whatever came before: repaired and run to its end, the store is whole."""
        if self.rollouts is not None:
            health.repair(self.path)
            with Archive(self.path) as archive:
                for name in ("opposed", "neutral"):
                    probe(archive, name)
                archive.write_node("stats/x", xr.Dataset({"a": ("k", [0.0])}))
            assert health.check(self.path) == []
            self.is_consistent()
        shutil.rmtree(self.root)

    def dying(self, kill):
        """Events of a process that dies at one of them: the disk as it is then goes on."""
        steps = count(1)

        def on_event(event):
            if next(steps) == kill:
                copy = self.root / f"copy{next(self.copies)}.zarr"
                shutil.copytree(self.path, copy)
                holder = copy / WORK / "holder.json"
                if holder.exists():
                    dead = this_process()._replace(pid=2**22 + 1)
                    holder.write_text(json.dumps(dead._asdict()))
                self.copy = copy
                raise KilledError

        return on_event

    def act(self, action, kill):
        """Run an action that may die."""
        self.copy = None
        with suppress(KilledError), Archive(self.path, on_event=self.dying(kill)) as archive:
            action(archive)
        if self.copy is not None:
            shutil.rmtree(self.path)
            self.path = self.copy

    @initialize()
    def begin(self):
        self.rollouts = driver.rollouts(number=5, mean=8)
        with Archive(self.path) as archive:
            archive.write_rollouts(self.rollouts)

    @rule(kill=KILLS, number=st.integers(0, 4))
    def append(self, kill, number):
        if any((self.path / WORK / "probes").glob("*/plan.json")):
            return  # refused while a probe is under way; test_coverage.py
        seed = next(self.seeds) + 1
        more = driver.rollouts(number=number, mean=6, seed=seed)
        # Rollouts that the store has already would not be appended; short ones can come out equal.
        more["reward"] = more["reward"] * 0 + seed
        self.act(lambda archive: archive.append_rollouts(more, join=joined), kill)
        with Archive(self.path) as archive:
            there = archive.rollouts().sizes["rollout"]
        both = joined(self.rollouts, more) if number else self.rollouts
        assert there in (self.rollouts.sizes["rollout"], both.sizes["rollout"])
        assert kill is not None or there == both.sizes["rollout"]
        if there == both.sizes["rollout"]:
            self.rollouts = both

    @rule(kill=KILLS, name=NAMES)
    def score(self, kill, name):
        self.act(lambda archive: probe(archive, name), kill)
        assert kill is not None or Archive(self.path, mode="r").is_finished(name)

    @rule(kill=KILLS)
    def analyze(self, kill):
        node = xr.Dataset({"a": ("k", np.full(3, self.number + 1.0))})
        self.act(lambda archive: archive.write_node("stats/x", node), kill)
        with Archive(self.path) as archive:
            found = archive.nodes()
        if "/stats/x" in found:
            with xr.open_dataset(self.path, engine="zarr", group="stats/x") as node:
                value = int(node["a"].values[0])
            assert value in (self.number, self.number + 1)
            assert kill is not None or value == self.number + 1
            self.number = value

    @rule(which=st.sampled_from(["block", "probe", "stats"]), name=NAMES)
    def damage_and_repair(self, which, name):
        folder = {
            "block": self.path / WORK / "probes" / name,
            "probe": self.path / "probes" / name / "logp" / "c",
            "stats": self.path / "stats" / "x" / "a" / "c",
        }[which]
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        files = [file for file in files if file.stat().st_size]
        files = [file for file in files if file.suffix != ".json"]
        if files:
            content = bytearray(files[0].read_bytes())
            content[len(content) // 2] ^= 1
            files[0].write_bytes(content)
            assert any(finding.remedy == "again" for finding in health.check(self.path))
        health.repair(self.path)

    @rule(kill=KILLS)
    def grow_old_and_migrate(self, kill):
        if coverage.PARTS in coverage.attributes_of(self.path, "/rollouts"):
            return  # nothing could be appended in those days
        self._grow_old()
        self.copy = None
        with suppress(KilledError):
            migrate(self.path, on_event=self.dying(kill))
        if self.copy is not None:
            self.path = self.copy
        health.repair(self.path)

    def _grow_old(self):
        """Make a store of format 0 of it."""
        Archive(self.path).close()
        folder, metadata = self.path / "rollouts", self.path / "rollouts" / METADATA
        for name in UNKNOWN:
            shutil.rmtree(folder / name, ignore_errors=True)
            unknown = np.full(self.rollouts[name].shape, UNKNOWN[name], ROLLOUTS[name].dtype)
            self.rollouts[name] = (self.rollouts[name].dims, unknown)
        with xr.open_dataset(folder, engine="zarr", consolidated=False) as node:
            digest = layout.content_digest(node)
        own = json.loads(metadata.read_text())
        migration._rename(self.path, own["attributes"]["digest"], digest)
        own["attributes"]["digest"] = digest
        metadata.write_text(json.dumps(own))
        root = json.loads((self.path / METADATA).read_text())
        root["attributes"]["format_version"] = 0
        (self.path / METADATA).write_text(json.dumps(root))
        tree.consolidate(self.path)

    @invariant()
    def is_consistent(self):
        if self.rollouts is None:
            return
        # As it is, plain xarray opens it without a warning; and the next writer puts it in order.
        with xr.open_datatree(self.path) as found:
            assert "/rollouts" in found.groups
        Archive(self.path).close()
        left = [finding for finding in health.check(self.path) if finding.remedy != "repair"]
        assert all(finding.what.startswith(health.BEHIND) for finding in left), left
        with xr.open_datatree(self.path) as found:
            stored = found["rollouts"].to_dataset().load()
            for name in ROLLOUTS:
                np.testing.assert_array_equal(stored[name].values, self.rollouts[name].values)
            for group in found.groups:
                if group.startswith("/probes/"):
                    self._is_right(found[group].to_dataset(), stored)

    def _is_right(self, node, rollouts):
        """Every number of a probe is that of the rollouts that it was made on."""
        whole = driver.block(rollouts, 0, node.sizes["rollout"])
        for name in PROBE:
            np.testing.assert_array_equal(node[name].values, whole[name])


FEW = settings(max_examples=4, stateful_step_count=6)


def test_any_sequence_ends_in_a_consistent_store():
    run_state_machine_as_test(Sequences, settings=FEW)


@pytest.mark.slow
def test_many_sequences_end_in_a_consistent_store():
    many = settings(
        max_examples=40,
        stateful_step_count=12,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],  # to make a failure smaller takes minutes: by hand
    )
    run_state_machine_as_test(Sequences, settings=many)
