"""Commands as an array of jobs: on Slurm, or side by side on this machine, through submitit.

Reads  command lines.
Gives  submitted.
Needs  the extra `slurm`.

Each job is a command of its own that resumes, so any scheduler may kill and start it again.

Source: own work; `submitit.helpers.CommandFunction`, `Executor.batch` of submitit 1.5.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokensense.checks import require_extra
from tokensense.errors import InputError

CLUSTERS = ("slurm", "local")


def submitted(
    commands: Sequence[Sequence[str]],
    *,
    cluster: str,
    folder: Path,
    resources: Mapping[str, Any],
) -> list[Any]:
    """Hand commands to a scheduler, as one array.

    Args:
        commands: one a job.
        cluster: `slurm`, or `local` for processes of this machine.
        folder: for the scheduler's logs.
        resources: as submitit names them, such as timeout_min, slurm_partition, gpus_per_node.

    Returns:
        submitit's jobs: `job_id`, `result()`.

    Raises:
        InputError: the cluster is not known, or there is no Slurm here.
        MissingExtraError: submitit is not installed.
    """
    if cluster not in CLUSTERS:
        raise InputError(f"--submit takes {' or '.join(CLUSTERS)}; {cluster!r} came. Name one.")
    submitit = require_extra("submitit", "slurm")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise InputError(
            "--submit slurm needs Slurm's `sbatch`; it is not on the PATH of this machine. "
            "Run the command on a login node, or take --submit local."
        )
    helpers = require_extra("submitit.helpers", "slurm")
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    executor.update_parameters(name="tokensense", **resources)
    with executor.batch():
        return [executor.submit(helpers.CommandFunction(list(command))) for command in commands]
