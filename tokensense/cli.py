"""The command line: each command is one call of the public face.

Heavy libraries are imported inside the commands, so that `--help` answers at once. Exit codes: 0
fine, 1 findings or a failed check, 2 wrong usage or input. With `--json` a command prints JSON on
standard output and nothing else; progress goes to standard error.
"""

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from tokensense.errors import TokensenseError
from tokensense.screen import cost, findings, lines, plain, print_rows, screen

app = typer.Typer(
    help="Which tokens of a reasoning trace drive credit, and how we know.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Store = Annotated[Path, typer.Argument(help="Folder of the store.", metavar="STORE")]
Model = Annotated[
    str,
    typer.Option(
        "--model", help="Hub id in the local cache, folder with safetensors, or .gguf file."
    ),
]
Device = Annotated[str, typer.Option("--device", help="As torch names it: cpu, cuda, cuda:1.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Append = Annotated[
    bool, typer.Option("--append", help="Put them behind the rollouts that the store has.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random in this command.")]


def _friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Our own errors: one message, exit code 2. All else keeps its traceback: it is a defect."""

    @wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except TokensenseError as error:
            typer.echo(f"tokensense: {error}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            typer.echo(
                "tokensense: interrupted. `probe` keeps finished blocks and goes on with the same "
                "command; every other command starts again from its beginning.",
                err=True,
            )
            raise typer.Exit(130) from None

    return run


def _show(result: dict[str, Any], shown: list[str], *, as_json: bool) -> None:
    typer.echo(json.dumps(result, indent=1, sort_keys=True) if as_json else "\n".join(shown))


@app.command()
@_friendly
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
@_friendly
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
    _show(counts, lines(counts), as_json=as_json)


@app.command()
@_friendly
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
    as_json: Json = False,
) -> None:
    """Sample responses with the policy itself and judge them."""
    import tokensense as ts

    counts = ts.Study(store).generate(
        ts.load_policy(model, device=device),
        int(problems) if problems.isdecimal() else problems,
        task=task,
        limit=limit,
        group=group,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        append=append,
    )
    _show(counts, lines(counts), as_json=as_json)


@app.command()
@_friendly
def probe(
    store: Store,
    model: Model,
    probes: Annotated[
        list[str] | None,
        typer.Option(
            "--probe",
            help="opposed, placebo, neutral, published, outcome_tone, answer; once a probe. "
            "The first three if neither this nor --conditions is given.",
        ),
    ] = None,
    conditions: Annotated[
        Path | None, typer.Option("--conditions", help="YAML or JSON file of your own conditions.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Of the probe that your own conditions become.")
    ] = "user",
    frames: Annotated[
        int | None,
        typer.Option("--frames", min=1, help="Sentences around the edited word; usually 6."),
    ] = None,
    families: Annotated[
        int | None, typer.Option("--families", min=1, help="Placebo families; usually 9.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tokens, memory and time that it takes; 10 s.")
    ] = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Score the stored tokens again under named conditions; goes on where it stopped.

    With several GPUs or processes: torchrun --standalone --nproc_per_node N -m tokensense probe ...
    """
    import tokensense as ts

    found = ts.Study(store).probe(
        ts.load_policy(model, device=device),
        probes=probes or None,
        conditions=conditions,
        name=name,
        frames=frames,
        families=families,
        dry_run=dry_run,
    )
    if os.environ.get("RANK", "0") == "0":  # one of several processes speaks for all
        _show(found, cost(found) if dry_run else lines(found), as_json=as_json)


@app.command()
@_friendly
def analyze(
    store: Store,
    resamples: Annotated[
        int, typer.Option("--resamples", min=100, help="Of the cluster bootstrap.")
    ] = 10_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Describe the shifts: each statistic for verdicts, for placebos, and the difference."""
    import tokensense as ts

    study = ts.Study(store)
    ts.analyze(study, resamples=resamples, seed=seed)
    rows = [row._asdict() for row in study.table()]
    notes = study.notes()
    if as_json:
        typer.echo(json.dumps({"rows": rows, "notes": notes}, indent=1))
        return
    print_rows(rows)
    for note in notes:
        typer.echo(f"note: {note}")


@app.command()
@_friendly
def credit(
    store: Store,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help="uniform, cscr, cscr_shuffled ...; once a rule. The first two if not given.",
        ),
    ] = None,
    advantage: Annotated[
        str | None,
        typer.Option("--advantage", help="group_std, group_mean, leave_one_out or pooled."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Credit of every token under named rules, kept in the store; says what their weights do."""
    import tokensense as ts

    chosen = {"rules": rules} if rules else {}
    found = ts.assign_credit(ts.Study(store), advantage=advantage, **chosen)
    numbers = [name for name, values in found.data_vars.items() if values.dims == ("rule",)]
    table = found[numbers].to_dataframe()[numbers].astype(object)
    rows = table.where(table.notna(), None).reset_index().to_dict("records")
    if as_json:
        typer.echo(json.dumps({"rules": rows, **found.attrs}, indent=1, default=str))
        return
    shown = [{name: plain(value) for name, value in row.items()} for row in rows]
    print_rows([{"section": "weights", **row} for row in shown])
    for name, value in found.attrs.items():
        typer.echo(f"{name}: {value}")


@app.command()
@_friendly
def figures(
    store: Store,
    out: Annotated[Path, typer.Option("--out", help="Folder for PDF, PNG, CSV and the manifest.")],
    which: Annotated[str, typer.Option("--set", help="Set of figures: shifts.")] = "shifts",
    style: Annotated[str, typer.Option("--style", help="neurips, icml, acl or plain.")] = "neurips",
    as_json: Json = False,
) -> None:
    """Draw the figures of a paper from a store that was analyzed."""
    import tokensense as ts

    manifest = ts.Study(store, mode="r").figures(out, which=which, style=style)
    _show(manifest, lines(manifest), as_json=as_json)


@app.command()
@_friendly
def view(
    store: Store,
    out: Annotated[Path, typer.Option("--out", help="File for the page, as tokens.html.")],
    problem: Annotated[
        list[str] | None, typer.Option("--problem", help="Name of a problem; once a problem.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Problems to show where none is named.")
    ] = 8,
    as_json: Json = False,
) -> None:
    """Show traces token by token, colored by shift, contrast or weight: one page of HTML."""
    import tokensense as ts

    found = ts.Study(store, mode="r").view(out, problem=problem or None, limit=limit)
    shown = {"path": str(out), "shown": found.counts, "bytes": len(found.html.encode())}
    _show(shown, lines(shown), as_json=as_json)


@app.command()
@_friendly
def info(
    store: Store,
    check: Annotated[
        bool, typer.Option("--check", help="Read every byte; exit code 1 if something is wrong.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Migrate, clear and set aside what can be; then check.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a store holds, by whom it was made, and what is missing."""
    import tokensense as ts

    if not check and not repair:
        found = ts.Study(store, mode="r").info()
        _show(found, screen(found), as_json=as_json)
        return
    from tokensense.store import health

    done = health.repair(store) if repair else []
    left = health.check(store)
    result = {"done": done, "findings": [finding._asdict() for finding in left]}
    _show(result, [*done, *findings(left)] or ["nothing was found"], as_json=as_json)
    if left:
        raise typer.Exit(1)


@app.command()
@_friendly
def export(
    store: Store,
    node: Annotated[str, typer.Argument(help="As rollouts, probes/opposed.", metavar="NODE")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    format: Annotated[str, typer.Option("--format", help="parquet, csv or nc.")] = "parquet",
    as_json: Json = False,
) -> None:
    """Write a node as files that other tools open."""
    import tokensense as ts

    paths = [str(path) for path in ts.Study(store, mode="r").export(node, out, format=format)]
    _show({"files": paths}, paths, as_json=as_json)


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
