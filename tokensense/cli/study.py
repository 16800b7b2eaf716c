"""Commands about the studies of a checkout: study list, study run.

Source: own work.
"""

import itertools
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from tokensense.cli.common import Json, app, friendly, show

studies = typer.Typer(help="The studies of a checkout: list them, run one.", no_args_is_help=True)
app.add_typer(studies, name="study")


@studies.command("list")
@friendly
def list_studies(as_json: Json = False) -> None:
    """Which studies there are."""
    from tokensense.plans import found

    names = found()
    show(
        {"studies": names}, [f"{name:<20} {said}" for name, said in names.items()], as_json=as_json
    )


@studies.command("run")
@friendly
def run_study(
    name: Annotated[str, typer.Argument(help="As `study list` names it.", metavar="NAME")],
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML file of settings, any of them.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a.b=c, once a setting; before the file's.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="For studies that have several plans.")
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="The small form: seconds.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="As --set seed=SEED.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", help="a=1,2,3: a run for each, in folders of their own."),
    ] = None,
    submit: Annotated[
        str | None, typer.Option("--submit", help="slurm or local: the runs of --sweep as jobs.")
    ] = None,
    resources: Annotated[
        list[str] | None,
        typer.Option("--resource", help="Of a job, as submitit says it: timeout_min=60."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings as YAML and leave.")
    ] = False,
) -> None:
    """Run a study under its own settings, a file's, or those given here; goes on where it stopped.

    The settings are kept beside the results; a folder that was begun under others is refused.
    """
    from tokensense import plans

    given = [plans.read_settings(config)] if config else []
    given += [plans.assigned(text) for text in settings or []]
    given += [{"seed": seed}] if seed is not None else []
    chosen: dict[str, Any] = {"variant": variant, "tiny": tiny}
    made = [plans.planned(name, given=given, **chosen)]
    if sweep:
        made = [
            plans.planned(name, given=[*given, *point], **chosen)
            for point in _points(sweep, made[0].out or Path("runs") / name)
        ]
    if dry_run:
        typer.echo("---\n".join(plans.written(plan.settings) for plan in made), nl=False)
        return
    files = [plans.claim(plan) for plan in made]
    if submit is not None:
        again = ["study", "run", name, *(["--variant", variant] if variant else [])]
        _submit(again, files, cluster=submit, resources=resources or [])
        return
    for plan in tqdm(made, desc=name, unit="run", disable=len(made) == 1):
        plan.start()


def _points(sweep: list[str], out: Path) -> list[list[dict[str, Any]]]:
    """Settings of each run of a sweep, its folder among them."""
    from tokensense import plans

    axes = []
    for text in sweep:
        path, _, values = text.partition("=")
        named = [f"{path}={value.strip()}" for value in values.split(",")]
        axes.append([(one, plans.assigned(one)) for one in named])
    return [
        [*(tree for _, tree in point), {"out": str(out.joinpath(*(text for text, _ in point)))}]
        for point in itertools.product(*axes)
    ]


def _submit(
    again: list[str], files: list[Path | None], *, cluster: str, resources: list[str]
) -> None:
    """Hand the runs to a scheduler, and say how its jobs are called."""
    from tokensense import plans
    from tokensense.submission import submitted

    commands = [
        [sys.executable, "-m", "tokensense", *again, *(["--config", str(file)] if file else [])]
        for file in files
    ]
    asked: dict[str, Any] = {}
    for text in resources:
        asked |= plans.assigned(text)
    jobs = submitted(commands, cluster=cluster, folder=Path("runs/jobs"), resources=asked)
    for job, file in zip(jobs, files, strict=True):
        typer.echo(f"job {job.job_id}: {file}")
