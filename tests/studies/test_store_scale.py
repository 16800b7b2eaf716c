"""The scale study runs, says what was asked for beside what came, and cleans up after itself."""

import csv
from dataclasses import replace

import numpy as np

from studies import store_scale as study

CONFIG = replace(study.TINY, tokens=3_000, mean=50, block=400)


def test_a_tiny_run_prints_and_keeps_the_table(tmp_path, capsys):
    lines = {line.what: line for line in study.main(CONFIG, out=tmp_path, keep=True)}
    assert lines["assembly / fresh memmap, flushed"].limit == ">= 0.5"
    assert lines["open_datatree"].held in ("yes", "NO")
    printed = capsys.readouterr().out
    with (tmp_path / "store_scale.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows] == list(lines)
    assert all(what in printed for what in lines)
    # Rates are of the same bytes: 4 statistics x 6 conditions x tokens x 4 bytes.
    rate, apart = lines["assembly"].value, lines["assembly, its fsync"].value
    megabytes = 4 * 6 * lines["tokens"].value * 4 / 1e6
    together = megabytes / (megabytes / rate + apart)
    np.testing.assert_allclose(lines["assembly with fsync"].value, together, rtol=1e-6)
    # And the mean that both ways give is that of numbers held in memory.
    frozen = study.made_up_rollouts(CONFIG)
    length = frozen["length"].values
    logp = {
        conditions: np.concatenate(
            [
                study.made_up_block(
                    CONFIG, start, stop - start, tokens=int(length[start:stop].sum()),
                    conditions=conditions,
                )["logp"]
                for start, stop in study.block_ranges(length, CONFIG.block)
            ],
            axis=1,
        )
        for conditions in (1, 6)
    }  # fmt: skip
    shift, kind = logp[6] - logp[1], frozen["kind"].values
    wanted = [[row[kind == k].mean(dtype=np.float64) for k in range(12)] for row in shift]
    for way in (study.by_plain_xarray, study.by_tokens):
        found = way(str(tmp_path / "scale.zarr"))
        np.testing.assert_allclose(found["mean"].values, wanted, rtol=1e-5)


def test_blocks_are_whole_rollouts_of_at_most_so_many_tokens():
    length = np.array([30, 30, 50, 120, 10, 0])
    assert study.block_ranges(length, 100) == [(0, 2), (2, 3), (3, 4), (4, 6)]
