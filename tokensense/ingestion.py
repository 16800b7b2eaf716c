"""What `Study.ingest` brings in: traces with their questions, and how true they are to their run.

Reads  a file or folder of traces, the scoring policy's tokenizer, settings of the engine.
Gives  bring_in: `Imported` ready for `assemble`, and attributes of the `/rollouts` node:

    prompts  JSON, match -> problems (`fidelity.recover`); {} where the source has no prompts
    drift    JSON: rollouts, rollouts_changed, tokens, tokens_changed (`fidelity.drift`)
    engine   JSON: distribution of `sampled_logp`, comparable or why not (`engine.Engine`); {} where
             the source has no log-probabilities
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokensense import importing
from tokensense.errors import InputError
from tokensense.rollouts.engine import engine as engine_of
from tokensense.rollouts.fidelity import drift, recover
from tokensense.rollouts.trajectory import Imported

if TYPE_CHECKING:
    from tokensense.models.policy import Policy


def bring_in(
    path: str | Path,
    policy: "Policy",
    *,
    format: str,
    fields: Mapping[str, str] | None,
    limit: int | None,
    engine: Mapping[str, object] | None,
) -> tuple[Imported, dict[str, str]]:
    """Read traces and find out what they keep of their run.

    Args:
        path: file or folder.
        policy: will score.
        format: one of `importing.FORMATS`.
        fields: our field name -> the file's.
        limit: problems to take, whole groups; None for all.
        engine: see `rollouts.engine.engine`.

    Returns:
        What was read, and attributes as the module's header says.

    Raises:
        InputError: the file cannot be read as `format`, or settings of an engine are given for a
            file without log-probabilities.
        SchemaError: `format` is unknown.
        MissingExtraError: Parquet, and pyarrow is not installed.
        PolicyError: ids of another policy.
    """
    settings = engine_of(engine)
    imported = importing.read(path, format=format, fields=fields, limit=limit)
    imported, prompts = recover(imported, policy)
    has_logps = any(trace.logps is not None for trace in imported.traces)
    if engine and not has_logps:
        raise InputError(
            f"settings of the engine need log-probabilities that they are about; {path} has none. "
            "Leave the settings out."
        )
    attrs: dict[str, object] = {
        "prompts": prompts,
        "drift": drift(imported.traces, policy)._asdict(),
        "engine": settings.attributes() if has_logps else {},
    }
    return imported, {name: json.dumps(value, sort_keys=True) for name, value in attrs.items()}
