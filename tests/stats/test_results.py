import json

import numpy as np

from tokensense.stats.resampling import Estimates, Method
from tokensense.stats.results import dataset, plain, reason


def test_attributes_become_what_any_store_keeps():
    found = plain({"a": True, "b": np.float64(2.5), "c": ["x", 1], "d": np.nan, "e": "text"})
    assert found == {"a": 1, "b": 2.5, "c": '["x", 1]', "e": "text"}
    assert json.loads(json.dumps(found)) == found


def test_every_method_has_a_reason_in_words():
    assert reason(Method.NONE_FEW_PROBLEMS) == (
        "not estimable: fewer than 8 problem texts, no interval"
    )
    assert len({reason(int(method)) for method in Method}) == len(Method)


def test_a_dataset_keeps_limits_beside_their_estimate():
    one = np.array([1.0, 2.0])
    count = np.array([30, 30])
    found = dataset(
        Estimates(one, one - 0.5, one + 0.5, one / 10, np.zeros(2, np.int8), count, 0 * count),
        {"term": ("x", "y")},
        attrs={"seed": 3},
    )
    assert found.interval.sel(term="y").values.tolist() == [1.5, 2.5]
    assert found.method.attrs["flag_values"] == list(range(len(Method)))
    assert found.attrs == {"seed": 3}
