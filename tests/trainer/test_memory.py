"""Memory of a training step: the closed form, what autograd keeps, and what a process comes to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as t
from typer.testing import CliRunner

from tests.models.test_memory import ROOT, SMOLLM2
from tests.models.zoo import SIZES
from tokensense.cli import app
from tokensense.errors import PolicyError
from tokensense.models.outline import outline
from tokensense.trainer.config import SDPO, TrainConfig
from tokensense.trainer.memory import OVERHEAD, kept_bytes, training_need

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Qwen3 1.7B by its published sizes: a config and nothing else."""
    made = tmp_path_factory.mktemp("qwen3")
    t.Qwen3Config(
        hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, intermediate_size=6144, vocab_size=151936, tie_word_embeddings=True,
        max_position_embeddings=40960, architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(made)  # fmt: skip
    return made


def test_a_model_of_1_7_billion_is_counted_from_its_config_alone(folder):
    model = outline(folder, dtype="bfloat16")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    # Embeddings (tied); a layer's q and o, k and v, three inner maps, norms; the last norm.
    layer = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 6144 + 2 * 2048 + 2 * 128
    weights = 2 * (151936 * 2048 + 28 * layer + 2048)
    plain = training_need(model, TrainConfig())
    assert sum(plain.held.values()) == 5 * weights + OVERHEAD
    # 28 layers less one that is run again and what enters each of them.
    less = training_need(model, TrainConfig(checkpointing=True))
    name = "backward pass of a layer"
    inside, entering = kept_bytes(model, 2048), 2048 * 2048 * 2
    assert plain.moments[name] - less.moments[name] == 28 * (inside - entering) - inside
    assert less.peak < plain.peak


def test_a_teacher_that_follows_and_several_processes_cost_more(folder):
    model = outline(folder, dtype="bfloat16")
    weights = sum(p.numel() for p in model.parameters()) * 2
    config = TrainConfig(rule="sdpo", distillation=SDPO)
    held = training_need(model, config).held
    assert held["weights of the teacher"] == weights
    assert held["teacher's states"] == 8 * 4 * 160 * 2048 * 4
    several = training_need(model, TrainConfig(), processes=2)
    assert several.moments["joining gradients"] == 2 * 151936 * 2048 * 4  # above a bucket
    assert "joining gradients" not in training_need(model, TrainConfig()).moments


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_layer_keeps_what_autograd_is_seen_to_keep(kind, dtype):
    def kept(layers):
        sizes = {**SIZES, "num_hidden_layers": layers}
        torch.manual_seed(0)
        model = getattr(t, f"{kind}ForCausalLM")(getattr(t, f"{kind}Config")(**sizes)).to(dtype)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model.base_model(input_ids=torch.arange(80).view(2, 40), use_cache=False)
        del out
        return sum(size for place, size in found.items() if place not in own), model

    (more, _), (less, model) = kept(4), kept(2)
    # Beside it: a number or two a token and head, of norms and of the softmax.
    assert (more - less) / 2 == pytest.approx(kept_bytes(model, 80), rel=0.1)


def peak_of(*arguments):
    ran = subprocess.run(
        [sys.executable, "-m", "tests.trainer.peak", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(ran.stdout)


@needs_proc
def test_the_foreseen_peak_is_the_measured_one_within_30_percent():
    found = peak_of("tiny:tables", "2048", "1")
    assert found["measured"] == pytest.approx(found["foreseen"], rel=0.3)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["0", "1"])
@pytest.mark.parametrize("source", ["random", "tiny:tables", str(SMOLLM2)])
def test_the_peak_of_larger_models_is_foreseen_too(source, checkpointing):
    if source.startswith("/") and not SMOLLM2.exists():
        pytest.skip("needs SmolLM2-135M")
    found = peak_of(source, "2048", checkpointing)
    assert found["measured"] == pytest.approx(found["foreseen"], rel=0.3)


def test_a_dry_run_tells_the_need_and_makes_nothing(folder, tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text('{"checkpointing": true}')
    out = tmp_path / "run"
    call = ["train", str(out), "--model", str(folder), "--config", str(settings), "--dry-run"]
    found = CliRunner().invoke(app, [*call, "--dtype", "bfloat16", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["held"]["AdamW's moments"] == pytest.approx(2 * 3.205, abs=0.001)
    assert told["peak"] == pytest.approx(
        sum(told["held"].values()) + max(told["moments"].values()), abs=0.01
    )
    assert told["free"] > 0
    assert not out.exists()
    assert "AdamW's moments" in CliRunner().invoke(app, call).stdout


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"`config.json` of a causal language model is needed"):
        outline(tmp_path)
