"""Commands that show: figures, view, report, info, export, claims, doctor.

Source: own work.
"""

from pathlib import Path
from typing import Annotated

import typer

from tokensense.cli.common import Device, Dtype, Json, Store, app, friendly, show
from tokensense.screen import drawn, findings, lines, print_rows, screen


@app.command()
@friendly
def figures(
    store: Store,
    out: Annotated[Path, typer.Option("--out", help="Folder for PDF, PNG, CSV and the manifest.")],
    which: Annotated[
        str,
        typer.Option(
            "--set", help="shifts, credit, centers, localization, training, or all there is."
        ),
    ] = "shifts",
    style: Annotated[str, typer.Option("--style", help="neurips, icml, acl or plain.")] = "neurips",
    run: Annotated[
        list[Path] | None,
        typer.Option("--run", help="Folder of `train` to keep in the store first; once a run."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw the figures of a paper from a store: PDF, PNG, CSV, LaTeX, captions and a manifest."""
    import tokensense as ts

    for folder in run or []:
        ts.Study(store).keep_run(folder)
    manifest = ts.Study(store, mode="r").figures(out, which=which, style=style)
    show(manifest, drawn(manifest, str(out)), as_json=as_json)


@app.command()
@friendly
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
    show(shown, lines(shown), as_json=as_json)


@app.command()
@friendly
def report(
    store: Store,
    out: Annotated[Path, typer.Option("--out", help="Folder for report.html, report.md, figures.")],
    problems: Annotated[
        int, typer.Option("--problems", min=1, help="Problems whose tokens are shown.")
    ] = 4,
    style: Annotated[str, typer.Option("--style", help="neurips, icml, acl or plain.")] = "neurips",
    as_json: Json = False,
) -> None:
    """One page about a store that was analyzed: tables, figures, tokens, methods, limits."""
    import tokensense as ts
    from tokensense.report import write_report

    study = ts.Study(store, mode="r")
    paths = [str(path) for path in write_report(study, out, problems=problems, style=style)]
    show({"files": paths}, paths, as_json=as_json)


@app.command()
@friendly
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
    """What a store holds, by whom it was made, and what is missing.

    \f
    Raises:
        Exit: 1 where a check found something.
    """
    import tokensense as ts

    if not check and not repair:
        found = ts.Study(store, mode="r").info()
        show(found, screen(found), as_json=as_json)
        return
    from tokensense.store import health

    done = health.repair(store) if repair else []
    left = health.check(store)
    result = {"done": done, "findings": [finding._asdict() for finding in left]}
    show(result, [*done, *findings(left)] or ["nothing was found"], as_json=as_json)
    if left:
        raise typer.Exit(1)


@app.command()
@friendly
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
    show({"files": paths}, paths, as_json=as_json)


@app.command()
@friendly
def claims(as_json: Json = False) -> None:
    """Published claims by criteria fixed before the runs, and how the last runs came out."""
    from tokensense.stats.claims import ledger, read_claims, verdict_counts

    found = ledger(read_claims())
    if as_json:
        show({"claims": found}, [], as_json=True)
        return
    print_rows([{"section": "claims", **line} for line in found])
    for verdict, count in sorted(verdict_counts(found).items()):
        typer.echo(f"{verdict}: {count}")


@app.command()
@friendly
def doctor(
    store: Annotated[
        Path | None, typer.Argument(help="Folder of a store to look at.", metavar="[STORE]")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Policy to look at, as in `probe`.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Is everything in order: this machine, a policy, a store? Exit code 1 on findings.

    \f
    Raises:
        Exit: 1 where there is a finding.
    """
    import tokensense as ts
    from tokensense import doctor as checks

    found = list(checks.environment())
    if model is not None:
        found += checks.of_policy(ts.load_policy(model, device=device, dtype=dtype))
    if store is not None:
        found += checks.of_store(store)
    shown = [f"{check.state:<8} {check.name:<16} {check.text}" for check in found]
    show({"checks": [check._asdict() for check in found]}, shown, as_json=as_json)
    if any(check.state == "finding" for check in found):
        raise typer.Exit(1)
