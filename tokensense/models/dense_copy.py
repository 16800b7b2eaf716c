"""The dense copy of a GGUF file: dequantized once, then read like any folder.

Reads  a `.gguf` file; the environment variable TOKENSENSE_CACHE (else the platform's cache folder).
Gives  dense_copy, split_name, is_gguf, cache_folder, quiet.
Source transformers' `GgufConfig(dequantize=True)`: plain `Linear` modules, no `quantization_config`
       left behind.

A copy is found by the sha256 of the file, so a changed file never meets an old copy; it is written
beside and renamed, so a killed run leaves no half copy.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from gguf import GGUFReader, LlamaFileType
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from tokensense.errors import PolicyError

_MAGIC = b"GGUF"
MADE_BY = "made_by.json"


def cache_folder() -> Path:
    """Folder of copies that can be made again: TOKENSENSE_CACHE, else the platform's."""
    if named := os.environ.get("TOKENSENSE_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tokensense"
    fallback = Path.home() / ("AppData/Local" if sys.platform == "win32" else ".cache")
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or fallback) / "tokensense"


def is_gguf(path: Path) -> bool:
    """Whether `path` is a file that begins like a GGUF, whatever its name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def split_name(path: Path, copy: Path) -> str:
    """Name of a GGUF file's policy, as in `SmolLM2-135M-Instruct (Q4_1, dequantized)`.

    Args:
        path: the file.
        copy: its dense copy, which knows the quantization; reading it from the file takes seconds.
    """
    kind = json.loads((copy / MADE_BY).read_text(encoding="utf-8"))["quantization"]
    stem = re.sub(rf"[._-]{re.escape(kind)}$", "", path.stem, flags=re.IGNORECASE)
    return f"{stem} ({kind}, dequantized)"


def dense_copy(path: Path) -> Path:
    """Folder with dense float32 weights and tokenizer of a GGUF file; made at the first call.

    Half a minute for 135M parameters the first time (4 bytes a parameter on disk), the file's
    sha256 later.

    Raises:
        PolicyError: transformers cannot read the file, or left something packed.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    parent = cache_folder() / "dense"
    final = parent / digest
    if final.is_dir():
        return final
    parent.mkdir(parents=True, exist_ok=True)
    with FileLock(parent / f"{digest}.lock"):
        if not final.is_dir():
            _write_copy(path, final)
    return final


def _quantization(path: Path) -> str:
    """Name of the file's quantization, as `Q4_1`."""
    field = GGUFReader(path).get_field("general.file_type")
    if field is None:
        return "quantization unknown"
    return LlamaFileType(int(field.contents())).name.removeprefix("MOSTLY_").removeprefix("ALL_")


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars; the setting is put back."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _write_copy(path: Path, final: Path) -> None:
    """Dequantize into a folder aside, flush it, and rename it into place."""
    aside = Path(tempfile.mkdtemp(dir=final.parent, prefix="unfinished-"))
    try:
        model, tokenizer = _dequantized(path)
        with quiet():
            model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        made_by = {
            "file": path.name,
            "sha256": final.name,
            "quantization": _quantization(path),
            "transformers": transformers.__version__,
        }
        (aside / MADE_BY).write_text(json.dumps(made_by, indent=1), encoding="utf-8")
        for file in (*aside.iterdir(), aside):
            _flush(file)
        aside.rename(final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _dequantized(path: Path) -> tuple[PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Dense float32 model and tokenizer of a GGUF file."""
    where = {"gguf_file": path.name, "trust_remote_code": False, "local_files_only": True}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **where)
            model = AutoModelForCausalLM.from_pretrained(
                str(path.parent),
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
                **where,
            )
    except Exception as cause:  # its readers raise whatever they meet, bare `Exception` too
        raise PolicyError(
            f"A GGUF policy needs an architecture that transformers can dequantize; {path} fails: "
            f"{cause} "
            "Use the model's safetensors instead."
        ) from cause
    require_dense(model, str(path))
    return model, tokenizer


def require_dense(model: PreTrainedModel, source: str) -> None:
    """Check that no weight is packed: plain `Linear` only, no quantization left in the config.

    Raises:
        PolicyError: some module or the config says otherwise.
    """
    packed = sorted(
        {
            type(m).__name__
            for m in model.modules()
            if isinstance(m, nn.Linear) and type(m) is not nn.Linear
        }
        | {str(p.dtype) for p in model.parameters() if not p.dtype.is_floating_point}
    )
    if getattr(model.config, "quantization_config", None) is not None:
        packed.append("quantization_config")
    if packed:
        raise PolicyError(
            f"A policy from GGUF needs dense weights; {source} left {packed}. "
            "Use the tested transformers (constraints.txt) or the model's safetensors."
        )


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
