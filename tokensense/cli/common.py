"""What all commands have in common: the application, options, errors in one line, output.

Source: own work.
"""

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from tokensense.errors import TokensenseError

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
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="float32, bfloat16 or float16: of the weights; contrasts in a short one are marked.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Append = Annotated[
    bool, typer.Option("--append", help="Put them behind the rollouts that the store has.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random in this command.")]


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Our own errors: one message, exit code 2. All else keeps its traceback: it is a defect.

    Args:
        command: whose errors are met.

    Returns:
        The command, which raises `typer.Exit`: 2 after one of our errors, 130 after Ctrl-C.
    """

    @wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except TokensenseError as error:
            typer.echo(f"tokensense: {error}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            typer.echo(
                "tokensense: interrupted. `probe` keeps finished blocks, `train` finished steps, "
                "and both go on with the same command; every other command starts again from its "
                "beginning.",
                err=True,
            )
            raise typer.Exit(130) from None

    return run


def speaks() -> bool:
    """Whether this process is the one, of those that a launcher started, that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def show(result: dict[str, Any], shown: list[str], *, as_json: bool) -> None:
    """Print a result: as JSON, or the lines made for people."""
    typer.echo(json.dumps(result, indent=1, sort_keys=True) if as_json else "\n".join(shown))
