"""A run on disk: weights, optimizer and history, in files that hold no code.

Reads  and writes `<out>/step-000010/`: `policy/`, as `load_policy` takes it; AdamW's state and that
       of torch's generators in `optimizer.safetensors`; the weights of a teacher that follows in
       `teacher.safetensors`; everything else in `state.json`.
Gives  Identity, save, newest, restore, restore_teacher; save_policy, a policy alone.
Sign   none: nothing here is signed.

A checkpoint is written aside and renamed, so that a kill leaves the last one whole; older ones are
removed after that. Nothing is pickled.

Source: own work.
"""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from tokensense.errors import StoreError
from tokensense.models.dense_copy import quiet
from tokensense.models.policy import Policy, load_policy
from tokensense.models.tiny import CARD
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.sinks import Record, plain

FORMAT = 1
STATE, OPTIMIZER, POLICY = "state.json", "optimizer.safetensors", "policy"
TEACHER = "teacher.safetensors"
_NAME = re.compile(r"step-(\d{6,})")
_RNG, _CUDA_RNG = "torch_rng", "cuda_rng"


class Identity(NamedTuple):
    """What a run is of: two runs of one identity may go on as each other.

    Attributes:
        policy: digest of the weights that it began from.
        task: name of the task, with its sizes.
        config: all settings.
    """

    policy: str
    task: str
    config: TrainConfig


class Saved(NamedTuple):
    """A checkpoint as read.

    Attributes:
        policy: with the weights of the checkpoint.
        step: steps that are done.
        records: of the run so far.
        folder: where it lies.
    """

    policy: Policy
    step: int
    records: list[Record]
    folder: Path


def save(
    out: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    records: list[Record],
    identity: Identity,
    teacher: Policy | None = None,
) -> Path:
    """Write a checkpoint; one of this step that is there gets the newer history.

    Args:
        out: folder of the run.
        policy: as it is now.
        optimizer: over its parameters.
        step: steps that are done.
        records: of the run so far.
        identity: of the run.
        teacher: whose weights follow those of the policy.

    Returns:
        Its folder.
    """
    folder = out / f"step-{step:06d}"
    state = {
        "format": FORMAT,
        "step": step,
        "policy": identity.policy,
        "task": identity.task,
        "config": identity.config.as_json(),
        "name": policy.name,
        "torch": torch.__version__,
        "records": [plain(record) for record in records],
    }
    text = json.dumps(state, indent=1, sort_keys=True)
    if folder.is_dir():  # judged since then, with the same weights
        partial = folder / f"{STATE}.partial"
        partial.write_text(text, "utf-8")
        partial.replace(folder / STATE)
        return folder
    aside = out / f".{folder.name}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    save_policy(policy, aside / POLICY)
    save_file(_optimizer_tensors(policy, optimizer), aside / OPTIMIZER)
    if teacher is not None:
        save_file(_weights(teacher), aside / TEACHER)
    (aside / STATE).write_text(text, "utf-8")
    aside.replace(folder)
    for _, older in _checkpoints(out):
        if older != folder:
            shutil.rmtree(older)
    return folder


def save_policy(policy: Policy, folder: Path) -> None:
    """Write a policy as `load_policy` takes it.

    Args:
        policy: weights, tokenizer, wordings.
        folder: made where it is not there; files of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(str(folder))
    (folder / CARD).write_text(json.dumps({"wordings": policy.wordings}), "utf-8")


def newest(out: Path, identity: Identity, *, device: str, dtype: str) -> Saved | None:
    """The last checkpoint of a run, None where there is none.

    Args:
        out: folder of the run.
        identity: that the run must have, but for how long it goes on.
        device: for the policy.
        dtype: of the policy.

    Raises:
        StoreError: the checkpoint is of another run, or of another format; what differs is named.
    """
    found = _checkpoints(out)
    if not found:
        return None
    step, folder = found[-1]
    state = json.loads((folder / STATE).read_text("utf-8"))
    _require_same(state, identity, folder)
    policy = load_policy(folder / POLICY, device=device, dtype=dtype)
    policy.name = state["name"]
    # JSON has no NaN: `plain` made it null.
    records = [
        {name: math.nan if value is None else value for name, value in record.items()}
        for record in state["records"]
    ]
    return Saved(policy, step, records, folder)


def restore(optimizer: torch.optim.Optimizer, saved: Saved) -> None:
    """Put the state of optimizer and generators back.

    Args:
        optimizer: over the parameters of the checkpoint's policy, without state.
        saved: the checkpoint.
    """
    tensors = load_file(saved.folder / OPTIMIZER)
    torch.set_rng_state(tensors.pop(_RNG))
    if _CUDA_RNG in tensors:
        torch.cuda.set_rng_state(tensors.pop(_CUDA_RNG), saved.policy.device)
    names = dict(saved.policy.model.named_parameters())
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        # AdamW counts its steps on the CPU.
        held = value if part == "step" else value.to(saved.policy.device)
        optimizer.state[names[name]][part] = held


def restore_teacher(teacher: Policy, saved: Saved) -> None:
    """Put the weights of a teacher back.

    Args:
        teacher: of the same kind; changed.
        saved: the checkpoint.
    """
    names = dict(teacher.model.named_parameters())
    with torch.no_grad():
        for name, value in load_file(saved.folder / TEACHER).items():
            names[name].copy_(value)


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Each parameter once, tied ones under their first name."""
    named = policy.model.named_parameters()
    return {name: value.detach().cpu().contiguous() for name, value in named}


def _optimizer_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """State of the optimizer by parameter and part, and that of torch's generators."""
    found = {
        f"{name}/{part}": value.detach().cpu().contiguous()
        for name, parameter in policy.model.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }
    found[_RNG] = torch.get_rng_state()
    if policy.device.type == "cuda":
        found[_CUDA_RNG] = torch.cuda.get_rng_state(policy.device)
    return found


def _checkpoints(out: Path) -> list[tuple[int, Path]]:
    """Whole checkpoints by their steps."""
    names = ((_NAME.fullmatch(path.name), path) for path in out.glob("step-*"))
    return sorted((int(match[1]), path) for match, path in names if match)


def _require_same(state: dict[str, Any], identity: Identity, folder: Path) -> None:
    if state.get("format") != FORMAT:
        raise StoreError(
            f"a checkpoint of format {FORMAT} is needed; {folder} has {state.get('format')!r}. "
            "Choose another folder."
        )
    wrong = TrainConfig.from_json(state["config"]).differences(identity.config)
    for name in ("policy", "task"):
        mine, theirs = getattr(identity, name), state[name]
        if mine != theirs:
            wrong.append(f"{name}: {theirs} -> {mine}")
    if wrong:
        raise StoreError(
            f"to go on, a run needs the settings that {folder} was made with; these differ: "
            f"{'; '.join(wrong)}. Choose another folder, or the same settings."
        )
