"""What leaves the store comes back, by other readers, as what was in it."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.io
import xarray as xr

from tests.store import driver
from tokensense import export as module
from tokensense.errors import InputError, SchemaError, StoreError
from tokensense.export import export
from tokensense.rollouts.table import text_of
from tokensense.schema import ROLLOUTS, Comparability
from tokensense.store import Archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "s.zarr"
    driver.run(path, number=6, mean=7, size=4)
    with Archive(path) as writer:
        words = xr.Dataset(
            {"text": ("kind", np.array(["a b", "Ü", ""])), "ok": ("kind", [True, False, True])},
            coords={"kind": [3, 1, 2]},
            attrs={"names": ["a", "b"], "none": [], "good": True},
        )
        writer.write_node("stats/words", words)
        writer.write_node("stats/number", xr.Dataset({"n": 3}))
    return Archive(path, mode="r")


def read(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_a_probe_becomes_a_line_a_condition_and_token(archive, tmp_path, monkeypatch, format):
    monkeypatch.setattr(module, "LINES", 10)  # so that a table is written in pieces
    paths = export(archive, "/probes/opposed", tmp_path, format=format)
    assert {path.name for path in paths} == {
        f"probes.opposed.{dims}.{format}"
        for dims in ("condition.token", "condition.rollout", "rollout")
    }
    node = archive.read("/probes/opposed")
    table = read(tmp_path / f"probes.opposed.condition.token.{format}")
    assert len(table) == node.sizes["condition"] * node.sizes["token"]
    assert table["token"].tolist() == list(range(node.sizes["token"])) * 4
    names = np.repeat(driver.CONDITIONS, node.sizes["token"])
    assert table["condition_name"].tolist() == names.tolist()
    for name in ("logp", "entropy", "p_max", "p_square_sum"):
        found = table[name].to_numpy().astype(np.float32)
        np.testing.assert_array_equal(found, node[name].values.ravel())
    other = read(tmp_path / f"probes.opposed.condition.rollout.{format}")
    names = {member.value: member.name.lower() for member in Comparability}
    wanted = [names[value] for value in node["comparability"].values.ravel()]
    assert other["comparability"].tolist() == wanted
    assert other["inserted_tokens"].tolist() == node["inserted_tokens"].values.ravel().tolist()


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_rollouts_become_tables_with_words(archive, tmp_path, format):
    paths = export(archive, "rollouts", tmp_path, format=format)
    dims = ("problem", "prompt_token", "rollout", "token", "vocab")
    assert {path.name for path in paths} == {f"rollouts.{dim}.{format}" for dim in dims}
    node = archive.rollouts()
    rollout = read(tmp_path / f"rollouts.rollout.{format}")
    assert rollout["finish"].tolist() == ["unknown"] * 6
    np.testing.assert_array_equal(rollout["reward"].to_numpy(np.float32), node["reward"].values)
    assert rollout["reward"].isna().sum() == 2  # null, not NaN and not 0
    problem = read(tmp_path / f"rollouts.problem.{format}")
    assert problem["question"].tolist() == text_of(node, "question")
    token = read(tmp_path / f"rollouts.token.{format}")
    assert token["token_id"].tolist() == node["token_id"].values.tolist()
    assert 151643 in set(token["token_id"])


def test_missing_numbers_are_null_in_parquet(archive, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    export(archive, "rollouts", tmp_path)
    table = pq.read_table(tmp_path / "rollouts.rollout.parquet")
    assert table["reward"].null_count == 2
    assert str(table["reward"].type) == "float"
    assert str(table["length"].type) == "int32"


@pytest.mark.parametrize("node", ["rollouts", "probes/opposed", "stats/words", "stats/number"])
def test_netcdf_holds_the_arrays_of_the_store(archive, tmp_path, node):
    (path,) = export(archive, node, tmp_path, format="nc")
    stored = archive.read(node)
    with xr.open_dataset(path, engine="scipy", decode_cf=False) as found:
        for name, variable in stored.variables.items():
            if variable.dtype.kind in "biuf":
                values = found[name].values.astype(variable.dtype)
                np.testing.assert_array_equal(values, variable.values)
                assert found[name].dims == variable.dims
    with scipy.io.netcdf_file(path, mmap=False) as plain:
        if node == "rollouts":
            assert set(plain.variables) == set(ROLLOUTS)
            assert plain.variables["token_id"].data.dtype == ">i4"
    if node == "stats/words":
        with xr.open_dataset(path, engine="scipy") as found:
            words = found["text"].values.tolist()
            assert [w.decode() if isinstance(w, bytes) else w for w in words] == ["a b", "Ü", ""]
            assert json.loads(found.attrs["names"]) == ["a", "b"]


def test_a_node_without_dims_is_a_table_of_one_line(archive, tmp_path):
    (path,) = export(archive, "stats/number", tmp_path, format="csv")
    assert path.name == "stats.number.scalar.csv"
    assert path.read_text() == "n\n3\n"


def test_what_cannot_be_exported_says_so(archive, tmp_path):
    with pytest.raises(SchemaError, match=r"`format` needs one of \['csv', 'nc', 'parquet'\]"):
        export(archive, "rollouts", tmp_path, format="xlsx")
    with pytest.raises(StoreError, match="it has: /rollouts"):
        export(archive, "probes/none", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="needs a folder to write to"):
        export(archive, "rollouts", tmp_path / "file")
