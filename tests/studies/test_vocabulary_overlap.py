"""The table of overlaps: means weighted by tokens, paired differences, what is NaN left out."""

import numpy as np
import xarray as xr

from studies.vocabulary_overlap import TINY, summary


def test_terms_are_means_over_tokens_and_nan_is_left_out_and_counted():
    rng = np.random.default_rng(0)
    values = rng.uniform(size=(3, 120)).astype(np.float32)
    values[1, 5] = np.nan
    found = xr.Dataset(dict.fromkeys(("cosine", "shared"), (("pair", "token"), values)))
    cluster = np.repeat(np.arange(24), 5)
    table = summary(found, np.array([True, False, False]), cluster, TINY)
    row = table[table["measure"] == "cosine"].set_index("term")
    keep = np.arange(120) != 5
    verdict, placebo = values[0, keep].mean(), values[1:, keep].mean()
    np.testing.assert_allclose(row.loc["verdict", "estimate"], verdict, rtol=1e-6)
    np.testing.assert_allclose(row.loc["placebo", "estimate"], placebo, rtol=1e-6)
    np.testing.assert_allclose(row.loc["difference", "estimate"], verdict - placebo, rtol=1e-5)
    assert row.loc["verdict", "low"] < verdict < row.loc["verdict", "high"]
    assert (row["texts"] == 24).all()
    assert (row["tokens"] == 119).all()
    assert (row["left_out"] == 1).all()
