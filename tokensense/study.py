"""A study: one store, one scoring policy, and everything that was asked of them.

Reads  files of traces, policies, the store's own nodes.
Gives  Study (ingest, generate, probe, tokens, figures, info), open_studies. Parts are put
       together here; nothing is computed that a part owns.
Sign   shift = logp[condition] - logp[base], nats; positive: the token becomes likelier.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from tokensense import generation, ingestion
from tokensense.errors import StoreError
from tokensense.flat import flat_tokens
from tokensense.freezing import freeze, has_sampled
from tokensense.reprs import table_html
from tokensense.results import Results
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.schema import BASE
from tokensense.screen import facts
from tokensense.store.archive import Archive
from tokensense.store.inventory import names_in
from tokensense.summary import summarize
from tokensense.tasks.planted import PLANTED
from tokensense.tasks.problem import Problem

if TYPE_CHECKING:
    from tokensense.figures.tokens import TokenView
    from tokensense.models.policy import Policy
    from tokensense.padded import Padded
    from tokensense.stats.rows import Row

USER_PROBE = "user"
COUNTED = ("problems", "rollouts", "tokens")


class Study:
    """One store: rollouts, the probes of one policy, and what was found.

    Args:
        path: folder of the store; `ingest` and `generate` make it where it is not there yet.
        mode: "a" to write, "r" to read only.
    """

    def __init__(self, path: str | Path, *, mode: Literal["a", "r"] = "a") -> None:
        self.path = Path(path)
        self.mode: Literal["a", "r"] = mode

    def __repr__(self) -> str:
        if not self.path.exists():
            return f"Study({str(self.path)!r}): no store there yet; ingest or generate makes one"
        found = self.info()
        counts = ", ".join(f"{found.get(name, 0)} {name}" for name in COUNTED)
        return (
            f"Study({str(self.path)!r}): {counts}; probes: {', '.join(found['probes']) or 'none'}"
        )

    def _repr_html_(self) -> str:
        rows = (
            [(name, text) for name, text in facts(self.info()) if text]
            if self.path.exists()
            else []
        )
        return table_html(f"Study {self.path}", rows, notes=[] if rows else [repr(self)])

    def archive(self) -> Archive:
        """The store below, for what this class does not offer.

        Raises:
            StoreError: it is missing (mode "r"), no store, or of another format version.
        """
        return Archive(self.path, mode=self.mode)

    def ingest(
        self,
        path: str | Path,
        *,
        format: str,
        policy: "Policy",
        fields: Mapping[str, str] | None = None,
        limit: int | None = None,
        engine: Mapping[str, object] | None = None,
        append: bool = False,
    ) -> dict[str, Any]:
        """Import traces that others wrote; text-only ones get ids from `policy`'s tokenizer.

        Args:
            path: the file, or the folder that a trainer wrote.
            format: one of `tokensense.importing.FORMATS`.
            policy: the policy that will score; it need not be the one that sampled.
            fields: our field name -> the file's, where the format has a choice.
            limit: problems to take, whole groups; None for all.
            engine: what is known of the log-probabilities: mode (raw or processed), temperature,
                top_p, top_k.
            append: put them behind the rollouts that the store has. Its probes go on with the new
                ones when they are run again, analyses have to be made again.

        Returns:
            What `info` says, and `refused`: a message a line that could not be read.

        Raises:
            InputError: the file cannot be read as `format`, or `engine` does not fit.
            PolicyError: ids of another policy.
            StoreError: the store has other rollouts already; with `append`, they are of another
                tokenizer, or a probe is unfinished.
        """
        imported, attrs = ingestion.bring_in(
            path, policy, format=format, fields=fields, limit=limit, engine=engine
        )
        dataset = assemble(imported, policy).assign_attrs(sampled_by_digest="", **attrs)
        freeze(self.archive(), dataset, append=append)
        return {**self.info(), "refused": imported.refused}

    def generate(  # noqa: PLR0913 (as many as sampling has settings)
        self,
        policy: "Policy",
        problems: str | Path | int | Sequence[Problem],
        *,
        task: str = "gsm8k",
        limit: int | None = None,
        group: int = 1,
        max_new_tokens: int = 512,
        temperature: float = 1.0,
        seed: int = 0,
        append: bool = False,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Sample responses with `policy` and judge them; undecided ones have reward NaN.

        Asked again for what the store has, it samples nothing.

        Args:
            policy: samples, and will score: the store is on-policy.
            problems: file of problems with answers, the problems themselves, or how many to draw
                of a planted task.
            task: format of that file, one of `tokensense.tasks.CATALOGUE`; or one of
                `tokensense.tasks.planted.PLANTED`, which knows every token.
            limit: problems to take, from the start; None for all.
            group: responses a problem.
            max_new_tokens: longest response; longer ones end with finish `length`.
            temperature: of sampling.
            seed: same seed, same bytes on CPU; problems that are drawn too.
            append: as for `ingest`.
            progress: show a bar.

        Returns:
            As `ingest`.

        Raises:
            SchemaError: `task` does not go with `problems`, or a number is out of range.
            InputError: the file cannot be read as `task`, or problems are none of a planted task.
            PolicyError: a prompt with `max_new_tokens` does not fit the policy's context.
            StoreError: the store has other rollouts already, and `append` was not asked for;
                nothing was sampled.
        """
        chosen, refused = generation.choose(problems, task=task, limit=limit, seed=seed)
        settings: dict[str, Any] = {
            "group": group,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        sampling = {
            **settings,
            "policy_digest": policy.digest,
            "problems": generation.question_digest(chosen),
            **({"task": task} if task in PLANTED else {}),
        }
        if self.path.exists() and has_sampled(self.archive(), sampling, append=append):
            return {**self.info(), "refused": refused}
        drawn = generation.draw(policy, chosen, task=task, progress=progress, **settings)
        attrs = {
            "sampled_by_digest": policy.digest,
            "sampling": json.dumps(sampling, sort_keys=True),
            "undecided": json.dumps(drawn.undecided, sort_keys=True),
        }
        dataset = assemble(Imported(chosen, drawn.traces, refused=refused), policy)
        freeze(self.archive(), dataset.assign_attrs(attrs), append=append)
        return {**self.info(), "refused": refused}

    def probe(
        self,
        policy: "Policy",
        probes: Sequence[str] | None = None,
        *,
        conditions: str | Path | None = None,
        name: str = USER_PROBE,
        frames: int | None = None,
        families: int | None = None,
        wordings: int = 1,
        dry_run: bool = False,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Score the stored tokens again under named conditions; goes on where it stopped.

        Several processes share the work where a launcher has started them; see
        `models.processes`. Every one of them makes the same call.

        Args:
            policy: scores.
            probes: names from `tokensense.probes.CATALOGUE`; None for `opposed`, `placebo` and
                `neutral`, or for none of them where `conditions` are given.
            conditions: file of your own conditions. Families whose names begin with `placebo` count
                as placebos.
            name: of the probe that your own conditions become. A probe cannot be changed once it is
                started; more conditions are a probe of another name.
            frames: sentences around each edited word; None for 6, or all where the policy can be
                told fewer.
            families: placebo families; None for 9, or all of fewer.
            wordings: word pairs of the verdict and of each family; from two on E1 asks whether
                what the verdict's words mean is read.
            dry_run: count tokens and blocks, score nothing.
            progress: show a bar with rate and time left.

        Returns:
            Counts: tokens scored, seconds, rollouts that may not be compared and why, numerical
            floor (or why there is none).

        Raises:
            SchemaError: an unknown probe.
            ConditionError: the conditions cannot be built for this policy, or `name` is that of a
                shipped probe.
            StoreError: no rollouts, another policy, or the probe has other conditions there.
            LockError: another run is writing.
            ProcessError: fewer processes came than were asked for, or one ended early.
        """
        from tokensense import probing

        asked = probing.chosen(
            policy,
            probes,
            conditions=conditions,
            name=name,
            frames=frames,
            families=families,
            wordings=wordings,
        )
        if dry_run:
            return probing.foreseen(self.path, policy, asked)
        return probing.scored(self.path, policy, asked, mode=self.mode, progress=progress)

    def tokens(self, probes: Sequence[str] | None = None, *, lazy: bool = False) -> xr.Dataset:
        """One flat Dataset of all response tokens under all conditions; see `flat.flat_tokens`.

        Args:
            probes: names; None for all finished ones. `base` is always there.
            lazy: leave the arrays on disk (dask reads them chunk by chunk); for millions of tokens.

        Raises:
            StoreError: no probe is finished, or one of those named is not.
            MissingExtraError: `lazy`, and dask is not installed.
        """
        archive = Archive(self.path, mode="r")
        has_base = f"/probes/{BASE}" in archive.nodes()
        names = [BASE] * has_base + names_in(archive, "probes")
        wanted = names if probes is None else [BASE, *probes]
        nodes = {name: archive.read(f"/probes/{name}", lazy=lazy) for name in wanted}
        return flat_tokens(archive.rollouts(lazy=lazy), nodes)

    def results(self) -> Results:
        """What `analyze` found: node name below `/stats` -> Dataset.

        Raises:
            StoreError: there is no store.
        """
        archive = Archive(self.path, mode="r")
        return Results({n: archive.read(f"/stats/{n}") for n in names_in(archive, "stats")})

    def table(self) -> "list[Row]":
        """Results of `analyze` as lines of text: estimate [95 % interval], unit and n.

        Raises:
            StoreError: there is no store, or it was not analyzed.
        """
        return self.results().table()

    def notes(self) -> list[str]:
        """What has to stand beside the numbers of `table`, in sentences.

        Raises:
            StoreError: there is no store, or it was not analyzed.
        """
        return self.results().notes()

    def figures(
        self, out: str | Path, *, which: str = "shifts", style: str = "neurips"
    ) -> dict[str, Any]:
        """Draw a set of figures: PDF, PNG, CSV and LaTeX each, and a manifest.

        Args:
            out: folder, made where it is missing.
            which: name of the set: shifts, credit, centers, localization or training; or `all`
                that the store has the data for.
            style: column widths and fonts.

        Returns:
            The manifest, as `drawing.draw_sets` describes it.

        Raises:
            FigureError: the store lacks what the set needs; the message names what makes it.
            StatisticsError: there is no verdict pair, or no placebo pair to put beside it.
            StoreError: there is no store, or no finished probe.
        """
        from tokensense.drawing import draw_sets

        return draw_sets(Archive(self.path, mode="r"), Path(out), which=which, style=style)

    def keep_run(self, folder: str | Path) -> str:
        """Bring a training run into the store; arguments and errors as of `drawing.keep_run`."""
        from tokensense.drawing import keep_run

        return keep_run(self.archive(), folder)

    def view(
        self,
        path: str | Path | None = None,
        *,
        problem: str | Sequence[str] | None = None,
        limit: int = 8,
    ) -> "TokenView":
        """A page of tokens colored by shift, contrast or weight; arguments as in `view.view`."""
        from tokensense.view import view

        return view(Archive(self.path, mode="r"), path, problem=problem, limit=limit)

    def export(self, node: str, out: str | Path, *, format: str = "parquet") -> list[Path]:
        """Write a node as parquet, CSV or NetCDF; arguments and errors as of `export.export`."""
        from tokensense.export import export

        return export(Archive(self.path, mode="r"), node, Path(out), format=format)

    def to_padded(self, names: Sequence[str], **options: Any) -> "Padded":  # noqa: ANN401 (`side`, `pad_id`)
        """Variables of `tokens()` as (B, T) tensors and a mask; see `padded.to_padded`."""
        from tokensense.padded import to_padded

        return to_padded(self.tokens(), names, **options)

    def info(self) -> dict[str, Any]:
        """What the store holds, by whom it was made, what is missing; see `summary.summarize`.

        Raises:
            StoreError: there is no store.
        """
        return summarize(Archive(self.path, mode="r"))


def open_studies(patterns: str | Path | Iterable[str | Path]) -> dict[str, Study]:
    """Open many stores for comparison, read-only.

    Args:
        patterns: a glob, as `runs/*.zarr`, or several; a path is one that matches itself.

    Returns:
        Path -> Study, sorted by path.

    Raises:
        StoreError: a pattern matches nothing.
    """
    paths: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        found = glob(str(pattern))  # noqa: PTH207 (absolute patterns too)
        if not found:
            raise StoreError(
                f"at least one store is needed; {str(pattern)!r} matches none. Check the pattern."
            )
        paths.update(found)
    return {path: Study(path, mode="r") for path in sorted(paths)}
