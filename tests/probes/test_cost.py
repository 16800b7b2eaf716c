import time

import numpy as np
import pytest

from tests.bigram import bigram_policy
from tests.builders import problems
from tests.probes.test_rescore import asked, run, stored, told
from tests.probes.tiny import tiny_policy
from tokensense.models import scorer
from tokensense.models.memory import Room, peak_bytes
from tokensense.models.pace import Pace, operations
from tokensense.models.plan import Load
from tokensense.probes import cost
from tokensense.probes.cost import estimate
from tokensense.rollouts.trajectory import Imported, Trace


@pytest.fixture(scope="module")
def tiny():
    return tiny_policy()


def test_it_foresees_what_is_done_and_writes_nothing(tiny, tmp_path):
    archive = stored(tmp_path / "s.zarr", tiny)
    conditions = asked(tiny, "opposed", "answer")
    seen = estimate(archive, tiny, conditions, tokens_per_block=150, seconds=0.2)
    assert archive.nodes() == ["/rollouts"]
    done = run(archive, tiny, conditions, tokens_per_block=150)
    assert seen["scored_tokens"] == seen["remaining_tokens"] == done["scored_tokens"]
    nodes = [archive.read(f"/probes/{name}") for name in ("base", *conditions)]
    assert seen["scored_tokens"] == sum(int((~np.isnan(n.logp)).sum()) for n in nodes)
    assert seen["blocks"] == sum(len(n.attrs["block_stops"]) for n in nodes)
    assert seen["rollouts"] == 12
    assert seen["response_tokens"] == archive.rollouts().sizes["token"]
    # 4 opposed and 4 answer conditions and the base, all applicable.
    assert seen["scored_tokens"] == 9 * seen["response_tokens"]
    assert {n: p["conditions"] for n, p in seen["probes"].items()} == {
        "base": 1, "opposed": 4, "answer": 4,
    }  # fmt: skip
    again = estimate(archive, tiny, conditions, tokens_per_block=150)
    assert again["remaining_tokens"] == again["remaining_seconds"] == again["peak_gib"] == 0
    assert again["tokens_per_second"] is None


@pytest.mark.parametrize("rows", [32, 100, 1024])
def test_tokens_and_time_are_those_of_the_rows_that_are_really_fed(
    tiny, tmp_path, monkeypatch, rows
):
    archive = stored(tmp_path / "s.zarr", tiny)
    conditions = asked(tiny, "opposed")
    pace = Pace(tokens=100, seconds=2.0, rate=5e6)
    monkeypatch.setattr(cost, "measured_pace", lambda *args, **rest: pace)
    settings = {"tokens_per_block": 400, "tokens_per_row": rows}
    seen = estimate(archive, tiny, conditions, **settings)
    planned = []
    plan_rows = scorer.plan_rows

    def recording(branches, *, tokens_per_row):
        planned.append(plan_rows(branches, tokens_per_row=tokens_per_row))
        return planned[-1]

    monkeypatch.setattr(scorer, "plan_rows", recording)
    run(archive, tiny, conditions, **settings)
    fed = [row for plan in planned for stream in plan for row in stream]
    assert seen["fed_tokens"] == sum(row.ids.size for row in fed)
    assert seen["whole_tokens"] > seen["fed_tokens"]
    load = Load(
        fed=seen["fed_tokens"],
        pairs=sum(int((row.positions + 1).sum()) for row in fed),
        scored=seen["scored_tokens"],
    )
    assert seen["remaining_seconds"] == pytest.approx(operations(tiny, load) / 5e6)
    assert seen["tokens_per_second"] == pytest.approx(
        seen["remaining_tokens"] / seen["remaining_seconds"]
    )
    # The worst block: its longest branch, its largest stream, as many of these as there are.
    longest = max(int(row.positions.max()) + 1 for row in fed)
    largest = max(sum(row.ids.size for row in stream) for plan in planned for stream in plan)
    many = max(min(seen["streams"], len(plan)) for plan in planned)
    room, carries = Room(min(rows, largest), many), largest > rows
    most = peak_bytes(tiny, room, longest=longest, path="trie", carries=carries)
    assert 0.9 * most <= seen["peak_gib"] * 2**30 <= most
    assert seen["free_gib"] > seen["peak_gib"]


def test_tokens_are_counted_by_hand(tmp_path):
    bigram = bigram_policy()
    made = [problems(1)[0]]
    archive = stored(
        tmp_path / "s.zarr", bigram, Imported(made, [Trace("p0", "a", "ab"), Trace("p0", "b", "c")])
    )
    conditions = {"mine": (told("One."), told("Other.", name="d"))}
    seen = estimate(archive, bigram, conditions, seconds=0.1)["probes"]
    base = len(bigram.render(made[0].question))
    tail = base - len(
        bigram.encode("<|start|>system\nBe brief.<|end|>\n<|start|>user\n" + made[0].question)
    )
    # Of "ab" the first is fed, of "c" nothing; the last token of a response never is.
    assert seen["base"]["whole_tokens"] == 2 * base + 1
    assert seen["base"]["fed_tokens"] == base + 1
    # "\n\nOne." and "\n\nOther." share their blank line and "O".
    assert seen["mine"]["whole_tokens"] == 2 * (base + 6) + 2 * (base + 8) + 2
    assert seen["mine"]["fed_tokens"] == (base - tail) + 3 + (3 + tail) + (5 + tail) + 2


@pytest.mark.slow
def test_time_is_foreseen_within_a_factor_of_one_and_a_half(tmp_path):
    policy = tiny_policy()
    made = problems(40)
    given = [Trace(p.name, str(i), f"It is {i}. " * (5 + i)) for p in made for i in range(4)]
    archive = stored(tmp_path / "s.zarr", policy, Imported(made, given))
    conditions = asked(policy, "opposed", "placebo", frames=3, families=3)
    foreseen = estimate(archive, policy, conditions)["remaining_seconds"]
    began = time.monotonic()
    run(archive, policy, conditions)
    assert foreseen == pytest.approx(time.monotonic() - began, rel=0.5)
