"""A model as its config has it, without weights.

Reads  what `load_policy` takes, of which the config is enough: no weights, no tokenizer.
Gives  outline.
Source torch's "meta" device: shapes and number formats, no bytes.
"""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tokensense.checks import require_member
from tokensense.errors import PolicyError
from tokensense.models import tiny
from tokensense.models.dense_copy import dense_copy, is_gguf, quiet
from tokensense.models.policy import DTYPES


def outline(source: str | Path, *, dtype: str = "float32") -> PreTrainedModel:
    """The modules of a policy on torch's `meta` device.

    Args:
        source: as in `load_policy`; a folder needs `config.json` alone.
        dtype: one of `DTYPES`.

    Raises:
        PolicyError: no config of a causal language model is found there.
        SchemaError: `dtype` is not one of `DTYPES`.
    """
    require_member("dtype", dtype, DTYPES)
    folder = str(source)
    if folder.startswith(tiny.SCHEME):
        folder = str(tiny.folder(folder))
    elif is_gguf(Path(source)):
        folder = str(dense_copy(Path(source)))
    try:
        with quiet(), torch.device("meta"):
            config = AutoConfig.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            made: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=getattr(torch, dtype), trust_remote_code=False
            )
    except (OSError, ValueError) as cause:
        raise PolicyError(
            f"a `config.json` of a causal language model is needed in {folder!r} (a folder, or a "
            f"hub id in the local cache); transformers says: {cause} Check the path."
        ) from cause
    return made
