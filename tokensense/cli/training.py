"""Commands that train: train.

Source: own work.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tokensense.cli.common import Device, Dtype, Json, Model, app, friendly, show, speaks
from tokensense.screen import lines


@app.command()
@friendly
def train(
    out: Annotated[
        Path,
        typer.Argument(help="Folder of the run; what lies there is gone on with.", metavar="OUT"),
    ],
    model: Model,
    task: Annotated[
        str, typer.Option("--task", help="Planted task: arithmetic or tables.")
    ] = "tables",
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="name=number, once a size of the task: lookups=3."),
    ] = None,
    held_out: Annotated[
        int, typer.Option("--held-out", min=1, help="Problems to judge by.")
    ] = 2048,
    config: Annotated[
        Path | None, typer.Option("--config", help="JSON file of the settings, any of them.")
    ] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="Of credit; else uniform.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=0)] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of everything random in this command.")
    ] = None,
    stop_on_collapse: Annotated[
        bool, typer.Option("--stop-on-collapse", help="End a run that has collapsed; exit code 1.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell the memory of a step, GiB; train nothing.")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Train a copy of the policy on the credit of a rule; goes on where it stopped.

    With several GPUs or processes: torchrun --standalone --nproc_per_node N -m tokensense train ...

    \f
    Raises:
        Exit: 1 where a run was stopped because it had collapsed.
        BadParameter: a size is no number.
    """
    import tokensense as ts
    from tokensense.trainer import loop, memory
    from tokensense.trainer.config import TrainConfig, read_config
    from tokensense.trainer.problems import planted

    made = TrainConfig() if config is None else read_config(config)
    given: dict[str, Any] = {"rule": rule, "steps": steps, "seed": seed}
    made = replace(made, **{name: v for name, v in given.items() if v is not None})
    if dry_run:
        several = int(os.environ.get("WORLD_SIZE", "1"))
        need = memory.dry_run(model, made, device=device, dtype=dtype, processes=several)
        show(need, lines(need), as_json=as_json)
        return
    result = loop.train(
        ts.load_policy(model, device=device, dtype=dtype),
        planted(task, held_out=held_out, **_sizes(size or [])),
        made,
        out=out,
        stop_on_collapse=stop_on_collapse,
    )
    told = _told(result.records, stopped=result.stopped)
    if speaks():
        show(told, [*lines(told), *(f.message for f in result.findings)], as_json=as_json)
    if result.stopped:
        raise typer.Exit(1)


def _told(records: list[dict[str, Any]], *, stopped: str) -> dict[str, Any]:
    """What a run came to, as plain values."""
    judged = [record for record in records if record["kind"] == "evaluation"]
    done = [record for record in records if record["kind"] == "step"]
    return {
        "steps": len(done),
        "seconds": round(sum(record["seconds"] for record in done), 1),
        "stopped": stopped,
        "accuracy": {str(record["step"]): round(record["accuracy"], 4) for record in judged},
        "findings": [
            {name: record[name] for name in ("step", "sign", "collapse", "message")}
            for record in records
            if record["kind"] == "finding"
        ],
    }


def _sizes(pairs: list[str]) -> dict[str, Any]:
    """`name=number` options; whole numbers stay whole."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            found[name] = int(text) if text.lstrip("-").isdecimal() else float(text)
        except ValueError as cause:
            raise typer.BadParameter(
                f"--size needs name=number, as lookups=3; it is {pair!r}. Give one a size."
            ) from cause
    return found
