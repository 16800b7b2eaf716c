import pytest

from tests.models.zoo import tiny_policy
from tokensense.models import pace
from tokensense.models.memory import Room
from tokensense.models.pace import loads_of, measured_pace, operations
from tokensense.models.plan import Branch, Load, plan_padded


@pytest.fixture(scope="module")
def llama():
    return tiny_policy("llama")


def branches(count, *, prompt=40, response=20):
    return [Branch((7,) * prompt, (i % 250,) * response) for i in range(count)]


def test_operations_are_counted_by_hand(llama):
    # Two layers of q and o (32 x 32), k and v (32 x 16), three of 32 x 48, and norms of 32.
    body = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32
    head, attention = 300 * 32, 4 * 32 * 2
    found = operations(llama, Load(fed=10, pairs=1000, scored=7))
    assert found == 2 * 10 * body + 2 * 7 * head + 1000 * attention


@pytest.mark.parametrize(("path", "size"), [("padded", 200), ("alone", 1)])
def test_side_by_side_padding_counts(path, size):
    made = branches(5) + branches(3, prompt=90)
    rows = [row for (row,) in plan_padded(made, tokens_per_row=size)]
    found = loads_of(made, tokens_per_row=200, path=path)
    assert [load.fed for load in found] == [row.ids.size for row in rows]
    assert sum(load.scored for load in found) == 8 * 20
    assert sum(load.pairs for load in found) == sum(int((row.positions + 1).sum()) for row in rows)


class Clock:
    """Time that passes by scoring only, at a given rate; the first call is slow."""

    def __init__(self, rate):
        self.now, self.rate, self.calls, self.made = 0.0, rate, [], False

    def monotonic(self):
        return self.now

    def score(self, policy, sample, *, path, tokens_per_row=1, compiled=False, streams=1):
        if compiled and not self.made:
            self.now, self.made = self.now + 60.0, True
            return
        loads = loads_of(sample, tokens_per_row=tokens_per_row, path=path)
        seconds = sum(operations(policy, load) for load in loads) / self.rate
        self.now += seconds + (0.0 if self.calls else 0.5)
        self.calls.append((sum(b.fed for b in sample), len(loads), seconds))


@pytest.mark.parametrize(("rate", "streams"), [(1e3, 1), (2e6, 1), (3e7, 2), (1e12, 4)])
def test_a_sample_as_large_as_time_allows_finds_the_rate(llama, monkeypatch, rate, streams):
    clock = Clock(rate)
    monkeypatch.setattr(pace, "time", clock)
    monkeypatch.setattr(pace, "score", clock.score)
    many = branches(200)
    found = measured_pace(llama, many, Room(1024, streams), path="trie", seconds=10.0)
    tokens = [fed for fed, _, _ in clock.calls]
    assert tokens == sorted(tokens)
    assert tokens[0] == 64
    if rate == 1e3:  # one sample is all there is time for
        assert len(tokens) == 1
        return
    assert found.rate == pytest.approx(rate)
    assert clock.now <= 10.0
    assert tokens[-1] == 200 * 59 or clock.now > 4.0  # all, or about the time it may take
    assert clock.calls[-1][1] >= streams


def test_making_fused_code_is_not_in_the_pace(llama, monkeypatch):
    clock = Clock(2e7)
    monkeypatch.setattr(pace, "time", clock)
    monkeypatch.setattr(pace, "score", clock.score)
    room = Room(1024, 1)
    found = measured_pace(llama, branches(200), room, path="trie", compiled=True, seconds=10.0)
    assert clock.made
    assert found.rate == pytest.approx(2e7)
    assert 64.0 < clock.now <= 70.0


def test_it_scores_for_real(llama):
    found = measured_pace(llama, branches(4), Room(1024, 1), path="trie", seconds=0.5)
    assert found.tokens <= 4 * 59
    assert found.rate > 0
