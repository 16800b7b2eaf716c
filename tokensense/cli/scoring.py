"""Commands that measure and judge: probe, analyze, credit.

Source: own work.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokensense.cli.common import (
    Device,
    Dtype,
    Json,
    Model,
    Seed,
    Store,
    app,
    friendly,
    show,
    speaks,
)
from tokensense.screen import cost, lines, plain, print_rows

if TYPE_CHECKING:
    import xarray as xr


@app.command()
@friendly
def probe(
    store: Store,
    model: Model,
    probes: Annotated[
        list[str] | None,
        typer.Option(
            "--probe",
            help="opposed, placebo, neutral, published, outcome_tone, answer, sibling, reference, "
            "negative_prompt; once a probe. "
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
    wordings: Annotated[
        int, typer.Option("--wordings", min=1, help="Word pairs of the verdict and each family.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tokens, memory and time that it takes; 10 s.")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Score the stored tokens again under named conditions; goes on where it stopped.

    With several GPUs or processes: torchrun --standalone --nproc_per_node N -m tokensense probe ...
    """
    import tokensense as ts

    found = ts.Study(store).probe(
        ts.load_policy(model, device=device, dtype=dtype),
        probes=probes or None,
        conditions=conditions,
        name=name,
        frames=frames,
        families=families,
        wordings=wordings,
        dry_run=dry_run,
    )
    if speaks():
        show(found, cost(found) if dry_run else lines(found), as_json=as_json)


@app.command()
@friendly
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


def _list_rules(asked: bool) -> bool:
    """Print what rules there are, and leave."""
    if not asked:
        return asked
    from tokensense.credit import CATALOGUE
    from tokensense.credit.base import DAGGER, GRADES
    from tokensense.credit.report import listing

    print_rows([{"section": "rules", **row} for row in listing(CATALOGUE)])
    for grade, meaning in GRADES.items():
        mark = f" ({DAGGER})" if grade == "inferred" else ""
        typer.echo(f"{grade}{mark}: {meaning}")
    raise typer.Exit


@app.command()
@friendly
def credit(
    store: Store,
    listed: Annotated[
        bool,
        typer.Option(
            "--list", help="Which rules there are, and leave.", callback=_list_rules, is_eager=True
        ),
    ] = False,
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
    from tokensense.credit.base import DAGGER
    from tokensense.credit.report import WEIGHT_NUMBERS

    del listed  # its callback has left
    chosen = {"rules": rules} if rules else {}
    found = ts.assign_credit(ts.Study(store), advantage=advantage, **chosen)
    numbers = [name for name, values in found.data_vars.items() if values.dims == ("rule",)]
    table = found[numbers].to_dataframe()[numbers].astype(object)
    rows = table.where(table.notna(), None).reset_index().to_dict("records")
    if as_json:
        typer.echo(json.dumps({"rules": rows, **found.attrs}, indent=1, default=str))
        return
    for row, grade in zip(rows, found["grade"].values.tolist(), strict=True):
        row["rule"] += DAGGER * (grade == "inferred")
    # Two tables, because one is too wide for a screen.
    others = set(table) - set(WEIGHT_NUMBERS)
    for section, shown in (("weights", WEIGHT_NUMBERS), ("credit", others)):
        print_rows(
            [
                {"section": section}
                | {name: plain(value) for name, value in row.items() if name in {"rule", *shown}}
                for row in rows
            ]
        )
    for name, value in found.attrs.items():
        typer.echo(f"{name}: {value}")


@app.command()
@friendly
def centers(
    store: Store,
    model: Model,
    resamples: Annotated[int, typer.Option("--resamples", min=100)] = 2_000,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """DelTA's two centers of a store: how alike, why, and which tokens are weighed up."""
    import tokensense as ts

    policy = ts.load_policy(model, device=device, dtype=dtype)
    found = ts.centers(ts.Study(store), policy, resamples=resamples, seed=seed)["centers"]
    shown = found.sel(score=["all tokens", "advantages shuffled"])
    numbers = shown["estimate"].to_series().unstack("statistic").to_dict("index")
    told = {**numbers["all tokens"], "tokens": found.attrs["n_tokens"]}
    if as_json:
        show({**told, "shuffled": numbers["advantages shuffled"]}, [], as_json=True)
        return
    print_rows(
        [
            {"section": "centers, beside advantages shuffled within problems"}
            | {"of": str(statistic)}
            | {str(score): _with_interval(shown.sel(statistic=statistic, score=score))
               for score in shown["score"].values}
            for statistic in shown["statistic"].values
        ]
    )  # fmt: skip
    typer.echo(f"tokens: {told['tokens']:,}; more with `tokensense figures --set centers`")


def _with_interval(one: "xr.Dataset") -> str:
    """`0.9994 [0.9991, 0.9996]`, or the estimate alone where there is no interval."""
    low, high = one["interval"].values.tolist()
    return f"{one['estimate'].item():.4f}" + f" [{low:.4f}, {high:.4f}]" * math.isfinite(low)


@app.command()
@friendly
def values(
    store: Store,
    model: Model,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Learning value of every token: what learning from it does for the reward elsewhere."""
    import tokensense as ts

    policy = ts.load_policy(model, device=device, dtype=dtype)
    found = ts.learning_values(ts.Study(store), policy, seed=seed)
    told = {name: found.attrs[name] for name in ("n_tokens", "n_problems", "halves_cosine")}
    show(told, lines(told), as_json=as_json)
