"""Commands that make or bring in traces: demo, import, generate.

Source: own work.
"""

from pathlib import Path
from typing import Annotated

import typer

from tokensense.cli.common import (
    Append,
    Device,
    Dtype,
    Json,
    Model,
    Seed,
    Store,
    app,
    friendly,
    show,
)
from tokensense.screen import arrived


@app.command()
@friendly
def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for stores, figures and pages.")
    ] = Path("runs/demo"),
    seed: Seed = 0,
) -> None:
    """See it work in 43 s (two free cores): three small policies of planted truth."""
    from tokensense.demo import Demo, run

    for line in run(out, config=Demo(seed=seed), tell=lambda line: typer.echo(line, err=True)):
        typer.echo(line)


def _formats(wanted: bool) -> bool:
    if wanted:
        from tokensense.importing.layouts import described

        typer.echo("\n".join(described()))
        raise typer.Exit
    return wanted


@app.command("import")
@friendly
def import_(
    store: Store,
    file: Annotated[
        Path, typer.Argument(help="File of traces, or folder of a run.", metavar="FILE")
    ],
    model: Model,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="jsonl, parquet, trl, verl, prime_rl, open_instruct, processbench, "
            "bigbench_mistake or gsm8k_solutions.",
        ),
    ],
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field", help="ours=theirs, once a field; dots go into nested objects (jsonl)."
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help="Of the log-probs: mode=raw or mode=processed, temperature=, top_p=, top_k=.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Problems to take, whole groups.")
    ] = None,
    formats: Annotated[
        bool,
        typer.Option(
            "--formats",
            callback=_formats,
            is_eager=True,
            help="List every format, what it follows and what it cannot tell; then stop.",
        ),
    ] = False,
    append: Append = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Bring in traces that others wrote."""
    import tokensense as ts

    # No field at all is no field map: formats with fixed fields refuse even an empty one.
    fields = _pairs(field, "--field") if field else None
    counts = ts.Study(store).ingest(
        file,
        format=format,
        policy=ts.load_policy(model, device=device),
        fields=fields,
        limit=limit,
        engine=_pairs(engine or [], "--engine"),
        append=append,
    )
    show(counts, arrived(counts), as_json=as_json)


@app.command()
@friendly
def generate(
    store: Store,
    model: Model,
    problems: Annotated[
        str,
        typer.Option(
            "--problems", help="File of problems with answers; how many, for a planted task."
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            "--task",
            help="Format of that file: gsm8k, math, aime or dapo. Planted: arithmetic or tables.",
        ),
    ] = "gsm8k",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Problems to take.")] = None,
    group: Annotated[int, typer.Option("--group", min=1, help="Responses a problem.")] = 1,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 512,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0)] = 1.0,
    seed: Seed = 0,
    append: Append = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Sample responses with the policy itself and judge them."""
    import tokensense as ts

    counts = ts.Study(store).generate(
        ts.load_policy(model, device=device, dtype=dtype),
        int(problems) if problems.isdecimal() else problems,
        task=task,
        limit=limit,
        group=group,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        append=append,
    )
    show(counts, arrived(counts), as_json=as_json)


def _pairs(fields: list[str], option: str) -> dict[str, str]:
    """`name=value` options as a dict."""
    pairs = dict(field.partition("=")[::2] for field in fields)
    bad = [field for field in fields if "=" not in field]
    if bad:
        typer.echo(
            f"tokensense: {option} needs name=value, as question=prompt or temperature=1; it is "
            f"{bad[0]!r}.",
            err=True,
        )
        raise typer.Exit(2)
    return pairs
