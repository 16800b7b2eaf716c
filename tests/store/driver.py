"""A stand-in for a scoring run: its numbers follow from indices, so every run gives the same ones.

It runs in processes of their own (multiprocessing's fork server, which has the heavy imports done),
and is killed there.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import xarray as xr

from tokensense.schema import PROBE, ROLLOUTS, Comparability
from tokensense.store import Archive
from tokensense.store.layout import flag_coordinate

CONDITIONS = ("pos", "neg", "placebo_one", "placebo_two")
# What xarray imports at its first Dataset (dask, 1 s) is to be there when the server forks.
DATASET = xr.Dataset({"a": 1})
ENGINES = xr.backends.list_engines()

# A run long enough to be hit.
SLOW = {"seconds": 0.03}


def rollouts(*, number=24, mean=900, seed=0):
    """A /rollouts node of made-up numbers; one response is empty."""
    rng = np.random.default_rng(seed)
    length = rng.poisson(mean, number).astype(np.int32)
    length[number // 2 :][:1] = 0
    problems = max(1, number // 4) if number else 0
    texts = [b"q%d" % i for i in range(max(1, problems))] + [b""]
    sizes = {
        "problem": problems,
        "prompt_token": 3 * problems,
        "rollout": number,
        "token": int(length.sum()),
        "vocab": 2,
        "text": len(texts),
        "byte": sum(map(len, texts)),
    }
    arrays = {
        name: np.zeros([sizes[dim] for dim in variable.dims], variable.dtype)
        for name, variable in ROLLOUTS.items()
    }
    arrays["length"] = length
    arrays["prompt_length"][:] = 3
    arrays["problem_of"] = (np.arange(number) % max(1, problems)).astype(np.int32)
    arrays["reward"] = np.where(np.arange(number) % 3 == 2, np.nan, np.arange(number) % 2)
    arrays["reward"] = arrays["reward"].astype(np.float32)
    # 0 and 151643 are what a fill value and a narrow type would spoil.
    arrays["token_id"] = rng.choice([0, 7, 151643], sizes["token"]).astype(np.int32)
    arrays["vocab_id"] = np.array([0, 151643], np.int32)
    arrays["text_length"] = np.array([len(text) for text in texts], np.int32)
    arrays["text_byte"] = np.frombuffer(b"".join(texts), np.uint8).copy()
    dataset = {name: (variable.dims, arrays[name]) for name, variable in ROLLOUTS.items()}
    return xr.Dataset(dataset, attrs={"sampled_by": ["m"], "tokenizer_digest": "t"})


def header(**changes):
    return {
        "conditions": [{"name": name, "text": f"It is {name}."} for name in CONDITIONS],
        "policy_digest": "p",
        "tokenizer_digest": "t",
        "template_digest": "c",
        "scoring": {"temperature": 1.0, "tokens_per_row": 4096},
        **changes,
    }


def coords():
    names = flag_coordinate(CONDITIONS, description="name of the condition")
    index = xr.Variable("condition", np.arange(len(CONDITIONS), dtype=np.int32))
    return {"condition": index, "condition_name": names}


def ranges(number, size):
    return [(start, min(start + size, number)) for start in range(0, number, size)]


def block(dataset, start, stop, *, conditions=4):
    """Arrays of the rollouts [start, stop): a function of global indices only."""
    edges = np.concatenate([[0], np.cumsum(dataset["length"].values, dtype=np.int64)])
    where = {
        "token": np.arange(edges[start], edges[stop]),
        "rollout": np.arange(start, stop),
    }
    found = {}
    for place, (name, variable) in enumerate(PROBE.items()):
        column = where[variable.dims[1]][None, :]
        row = np.arange(conditions)[:, None]
        if variable.dtype == "float32":
            found[name] = -np.abs(np.sin(column * 1.7 + row + place)).astype(np.float32)
            found[name][:, column[0] % 97 == 3] = np.nan
        else:
            # Among them Comparability.UNEQUAL_LENGTH and OK.
            found[name] = ((column + row) % len(Comparability)).astype(variable.dtype)
    return found


def run(path, *, seconds=0.0, number=12, mean=5500, size=4, on_event=lambda event: None, **options):
    """Write rollouts, score a probe block by block, assemble it, describe it."""
    dataset = rollouts(number=number, mean=mean)
    blocks = ranges(number, size)
    with Archive(path, on_event=on_event, **options) as archive:
        archive.write_rollouts(dataset)
        for index in archive.start_probe("opposed", header(), blocks):
            time.sleep(seconds)
            archive.write_block("opposed", index, block(dataset, *blocks[index]))
        archive.assemble_probe("opposed", coords=coords(), attrs={"scored_by": "m"})
        archive.write_node("stats/shifts", xr.Dataset({"mean": ("kind", np.arange(3.0))}))


def child(path, connection, options, *, fault=None, occurrence=1):
    """Body of a process: tell when it begins, run, and kill itself at a fault point if told so."""
    seen = 0

    def on_event(event):
        nonlocal seen
        seen += event == fault
        if event == fault and seen == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.send("ready")
    # A refusal or an interrupt is expected here; its traceback would only clutter the output.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    run(Path(path), on_event=on_event, **options)
