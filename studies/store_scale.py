"""What the store costs at 10 million tokens and six conditions: rates, size, memory, time to open.

    OMP_NUM_THREADS=1 python -m studies.store_scale --out runs/store_scale      # 4 minutes, 4 GB
    python -m studies.store_scale --tiny                                        # does it run?

Everything is measured in one run on one disk. A fresh memmap of the same arrays, written and
flushed (`msync`) before and after the store, is the yardstick; fsync stands apart. `assembly` is
what `Archive.assemble_probe` does: check the digest of every block, copy blocks of whole rollouts
into shards, checksum and compress, move the node in. Reads are of the page cache. The grouped means
run in processes of their own, so that their peak of memory is theirs: the mean shift by condition
and kind, once over arrays opened by plain xarray and once over `Study.tokens(lazy=True)`.

Column `processor` is the same by processor time of all threads: on a shared machine the wall clock
says how busy the others are. A rate by it is what one core does alone; limits are on wall time.

Prints a table, writes `store_scale.csv` beside the stores, which are deleted unless --keep.
Made-up numbers: rollouts of 2,000 tokens on average, log-probabilities exponential. They compress
as little as real ones.
"""

import argparse
import csv
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

import tokensense as ts
from studies.memory import peak_gib
from tokensense.errors import TokensenseError
from tokensense.flat import CONDITION_LABELS
from tokensense.schema import BASE, PROBE, ROLLOUTS, STATISTICS, Kind
from tokensense.segments import offsets
from tokensense.stats.grouped import mean_by
from tokensense.store import Archive
from tokensense.store.inventory import size_of
from tokensense.store.layout import flag_coordinate

PROBE_NAME = "scale"
MEGA = 1e6
RATIO = ("assembly", "fresh memmap, flushed")


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        tokens: about as many response tokens.
        mean: mean length of a rollout.
        conditions: of the large probe.
        block: tokens of a block, at most.
        seed: of lengths and numbers.
    """

    tokens: int = 10_000_000
    mean: int = 2_000
    conditions: int = 6
    block: int = 65_536
    seed: int = 0


TINY = Config(tokens=30_000, mean=300, block=8_192)


class Line(NamedTuple):
    """A line of the table; `limit` is what issue 5 asks for, empty where it asks for nothing."""

    what: str
    value: float
    unit: str
    limit: str = ""
    held: str = ""
    processor: float | None = None


class Spent(NamedTuple):
    """Seconds by the clock on the wall and by the processor."""

    wall: float = 0.0
    processor: float = 0.0

    @classmethod
    def now(cls) -> "Spent":
        """Both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, began: "Spent") -> "Spent":
        """Time between two readings."""
        return Spent(self.wall - began.wall, self.processor - began.processor)

    def plus(self, other: "Spent") -> "Spent":
        """Both together."""
        return Spent(self.wall + other.wall, self.processor + other.processor)

    def line(self, what: str, megabytes: float | None = None) -> Line:
        """Seconds, or megabytes a second."""
        if megabytes is None:
            return Line(what, self.wall, "s", processor=self.processor)
        rates = (megabytes / max(seconds, 1e-9) for seconds in self)
        return Line(what, next(rates), "MB/s", processor=next(rates))


def made_up_rollouts(config: Config) -> xr.Dataset:
    """A `/rollouts` node of made-up numbers; four rollouts a problem."""
    rng = np.random.default_rng(config.seed)
    length = rng.poisson(config.mean, config.tokens // config.mean).astype(np.int32)
    tokens, problems = int(length.sum()), -(-length.size // 4)
    texts = [b"", *(b"question %d" % i for i in range(problems))]
    sizes = {
        "problem": problems, "prompt_token": problems, "rollout": length.size, "token": tokens,
        "vocab": 1, "text": len(texts), "byte": sum(map(len, texts)),
    }  # fmt: skip
    arrays = {
        name: np.zeros([sizes[dim] for dim in variable.dims], variable.dtype)
        for name, variable in ROLLOUTS.items()
    }
    arrays["question"] = np.arange(1, problems + 1, dtype=np.int32)
    arrays["cluster"] = np.arange(problems, dtype=np.int32)
    arrays["prompt_length"] += 1
    arrays["length"] = length
    arrays["problem_of"] = (np.arange(length.size) // 4).astype(np.int32)
    arrays["reward"] = rng.integers(0, 2, length.size).astype(np.float32)
    arrays["kind"] = rng.integers(0, len(Kind), tokens).astype(np.int8)
    arrays["text_length"] = np.array([len(text) for text in texts], np.int32)
    arrays["text_byte"] = np.frombuffer(b"".join(texts), np.uint8).copy()
    attrs = {"sampled_by": ["made up"], "tokenizer_digest": "t", "sampled_by_digest": "p"}
    dataset = {name: (variable.dims, arrays[name]) for name, variable in ROLLOUTS.items()}
    return xr.Dataset(dataset, attrs=attrs)


def block_ranges(length: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Rollouts [start, stop) of blocks of at most `most` tokens."""
    edges, found, start = offsets(length), [], 0
    for stop in range(1, length.size + 1):
        if stop == length.size or edges[stop + 1] - edges[start] > most:
            found.append((start, stop))
            start = stop
    return found


def made_up_block(config: Config, start: int, rollouts: int, *, tokens: int, conditions: int):  # noqa: ANN201
    """Arrays of one block, as `Archive.write_block` takes them."""
    rng = np.random.default_rng([config.seed, start, conditions])
    shape = {"token": (conditions, tokens), "rollout": (conditions, rollouts)}
    return {
        name: -rng.standard_exponential(shape["token"], np.float32)
        if name in STATISTICS
        else np.zeros(shape["rollout"], variable.dtype)
        for name, variable in PROBE.items()
    }


def written(config: Config, path: Path) -> list[Line]:
    """Write and assemble base and probe; times of the large one."""
    frozen = made_up_rollouts(config)
    length = frozen["length"].values
    blocks = block_ranges(length, config.block)
    edges = offsets(length)
    clock: dict[str, Spent] = {}

    def on_event(event: str) -> None:
        clock[event] = Spent.now()

    with Archive(path, on_event=on_event) as archive:
        archive.write_rollouts(frozen)
        for name, conditions in ((BASE, 1), (PROBE_NAME, config.conditions)):
            header = {
                "conditions": [{"name": str(i)} for i in range(conditions)],
                "policy_digest": "p", "tokenizer_digest": "t", "template_digest": "c",
                "dtype": "float32",
            }  # fmt: skip
            spent = Spent()
            for index in archive.start_probe(name, header, blocks):
                start, stop = blocks[index]
                arrays = made_up_block(
                    config, start, stop - start,
                    tokens=int(edges[stop] - edges[start]), conditions=conditions,
                )  # fmt: skip
                began = Spent.now()
                archive.write_block(name, index, arrays)
                spent = spent.plus(Spent.now().since(began))
            began = Spent.now()
            coords = _coords(conditions)
            archive.assemble_probe(name, coords=coords, attrs={"scored_by": "made up"})
    megabytes = _megabytes(config, int(edges[-1]))
    built, ready = clock["publish:built"], clock["publish:ready"]
    return [
        spent.line("block writes, fsync each", megabytes),
        built.since(began).line("assembly", megabytes),
        ready.since(built).line("assembly, its fsync"),
        ready.since(began).line("assembly with fsync", megabytes),
    ]


def _megabytes(config: Config, tokens: int) -> float:
    """Megabytes of the statistics of the large probe."""
    return len(STATISTICS) * config.conditions * tokens * 4 / MEGA


def _coords(conditions: int) -> dict[str, xr.Variable]:
    """Coordinates of the made-up conditions."""
    names = [f"c{i}" for i in range(conditions)]
    index = xr.Variable("condition", np.arange(conditions, dtype=np.int32))
    labels = {
        label: flag_coordinate(["none"] * conditions, description=label)
        for label in CONDITION_LABELS
    }
    return {
        "condition": index,
        "condition_name": flag_coordinate(names, description="name of the condition"),
        **labels,
    }


def memmap(config: Config, path: Path, tokens: int) -> dict[str, Spent]:
    """The yardstick: the same bytes, block by block, into fresh flat files."""
    spent = dict.fromkeys(("write", "fsync", "read"), Spent())
    shape = (config.conditions, tokens)
    for name in STATISTICS:
        block = -np.random.default_rng(config.seed).standard_exponential(
            (config.conditions, min(config.block, tokens)), np.float32
        )
        file, clock = path / f"{name}.bin", [Spent.now()]
        array = np.memmap(file, np.float32, "w+", shape=shape)
        for left in range(0, tokens, config.block):
            right = min(left + config.block, tokens)
            array[:, left:right] = block[:, : right - left]
        array.flush()
        clock.append(Spent.now())
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
        clock.append(Spent.now())
        np.array(np.memmap(file, np.float32, "r", shape=shape))
        clock.append(Spent.now())
        file.unlink()
        for step, (one, two) in zip(spent, pairwise(clock), strict=True):
            spent[step] = spent[step].plus(two.since(one))
    return spent


def read(config: Config, path: Path, tokens: int) -> list[Line]:
    """Time to open, and to read all statistics of the large probe."""
    with xr.open_datatree(path):  # what xarray imports at its first store is not the store's
        pass
    began = Spent.now()
    with xr.open_datatree(path) as tree:
        opened = Spent.now().since(began)
        node = tree[f"probes/{PROBE_NAME}"].to_dataset()
        began = Spent.now()
        for name in STATISTICS:
            _ = node[name].values
        spent = Spent.now().since(began)
    lean = size_of(path / "probes" / PROBE_NAME) / MEGA
    return [
        spent.line("read", _megabytes(config, tokens)),
        opened.line("open_datatree")._replace(limit="< 0.2", held=_held(opened.wall < 0.2)),
        Line("size of the probe", lean, "MB"),
        Line("size / bytes of its floats", lean / _megabytes(config, tokens), "1"),
    ]


def by_plain_xarray(path: str) -> xr.Dataset:
    """Mean shift by condition and kind, from arrays that plain xarray opened."""
    nodes = {
        name: xr.open_dataset(path, engine="zarr", group=name, chunks={}, consolidated=True)
        for name in ("rollouts", f"probes/{BASE}", f"probes/{PROBE_NAME}")
    }
    base = nodes[f"probes/{BASE}"]["logp"].isel(condition=0)
    shift = nodes[f"probes/{PROBE_NAME}"]["logp"] - base
    return mean_by(shift, nodes["rollouts"]["kind"])


def by_tokens(path: str) -> xr.Dataset:
    """The same through the public face."""
    tokens = ts.Study(path, mode="r").tokens(lazy=True)
    return mean_by(tokens["shift"], tokens["kind"]).isel(condition=slice(1, None))


def measured(compute: Callable[[str], xr.Dataset], path: str) -> tuple[Spent, float, list[float]]:
    """Time, peak GiB of this process, and the result; to run in a process of its own."""
    began = Spent.now()
    found = compute(path)
    return Spent.now().since(began), peak_gib(), found["mean"].values.ravel().tolist()


def grouped(path: Path) -> list[Line]:
    """Time and memory of the grouped means."""
    lines, results = [], []
    for what, compute in (("plain xarray", by_plain_xarray), ("Study.tokens", by_tokens)):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            idle = pool.submit(peak_gib).result()
            spent, peak, mean = pool.submit(measured, compute, str(path)).result()
        results.append(mean)
        lines += [
            spent.line(f"grouped mean, {what}")._replace(limit="< 5", held=_held(spent.wall < 5)),
            Line(f"grouped mean, {what}, peak", peak, "GiB", "< 0.5", _held(peak < 0.5)),
            Line(f"grouped mean, {what}, before", idle, "GiB"),
        ]
    np.testing.assert_allclose(*results, rtol=1e-12, atol=1e-12)
    return lines


def _held(good: bool) -> str:
    return "yes" if good else "NO"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def table(config: Config, out: Path) -> list[Line]:
    """All lines, in the order in which they are measured, but that the yardsticks are summed."""
    store = out / "scale.zarr"
    tokens = int(made_up_rollouts(config).sizes["token"])
    before = memmap(config, out, tokens)
    lines = written(config, store)
    after = memmap(config, out, tokens)
    flat = {step: before[step].plus(after[step]) for step in before}
    twice = 2 * _megabytes(config, tokens)
    lines += [
        flat["write"].line("fresh memmap, flushed", twice),
        flat["fsync"].line("fresh memmap, its fsync"),
        flat["read"].line("memmap, read", twice),
    ]
    own, yard = (next(line for line in lines if line.what == what) for what in RATIO)
    ratio = own.value / yard.value
    lines.append(
        Line(" / ".join(RATIO), ratio, "1", ">= 0.5", _held(ratio >= 0.5))._replace(
            processor=(own.processor or 0.0) / (yard.processor or 1.0)
        )
    )
    lines += read(config, store, tokens)
    return [Line("tokens", tokens, "1"), *lines, *grouped(store)]


def main(config: Config, *, out: Path, keep: bool = False) -> list[Line]:
    """Measure, print, and write `store_scale.csv`."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / "scale.zarr", ignore_errors=True)
    try:
        lines = table(config, out)
    finally:
        if not keep:
            shutil.rmtree(out / "scale.zarr", ignore_errors=True)
    with (out / "store_scale.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows(
            (line.what, f"{line.value:.4g}", *line[2:5], _number(line.processor)) for line in lines
        )
    print(f"{'':40} {'wall':>10} {'processor':>10}")
    for line in lines:
        numbers = f"{_number(line.value):>10} {_number(line.processor):>10}"
        print(f"{line.what:40} {numbers} {line.unit:5} {line.limit:7} {line.held}")
    print(json.dumps({"config": config.__dict__}))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/store_scale"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the store there")
    arguments = parser.parse_args()
    try:
        main(TINY if arguments.tiny else Config(), out=arguments.out, keep=arguments.keep)
    except TokensenseError as error:
        sys.exit(f"store_scale: {error}")
