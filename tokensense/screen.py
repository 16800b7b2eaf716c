"""What commands print for people: `info` on one screen, findings, tables, lists.

Reads  what `summary.summarize` and `store.health` found; rows and mappings of plain values.
Gives  lines of text; nothing heavy is imported, so that `--help` answers at once.

Source: own work.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 100
# More probes than this are counted, so that a store of twenty is one screen as well.
PROBES = 8


def screen(found: Mapping[str, Any]) -> list[str]:
    """What a store holds, most important first.

    Args:
        found: of `summary.summarize`; what it lacks is left out.
    """
    shown = [f"{name:<12} {text}" for name, text in facts(found) if text]
    return [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in shown]


def arrived(found: Mapping[str, Any]) -> list[str]:
    """What a store holds after rollouts came in, and every line that was refused.

    Args:
        found: of `Study.ingest` and `Study.generate`.
    """
    return [*screen(found), *(f"{'refused':<12} {why}" for why in found["refused"])]


def drawn(manifest: Mapping[str, Any], out: str) -> list[str]:
    """Figures that were drawn, a line each, where words about them are, and what was not drawn.

    Args:
        manifest: of `Study.figures`; it holds captions and digests as well.
        out: the folder.
    """
    sets = manifest.get("sets", {"": manifest})
    shown = [
        f"{'/'.join(filter(None, (out, folder, name)))}: {', '.join(_endings(name, about))}"
        for folder, one in sets.items()
        for name, about in one["figures"].items()
    ]
    beside = [name for name in sets if name] or ["the folder"]
    shown.append(f"captions.txt, numbers.tex and manifest.json: in {', '.join(beside)}")
    return shown + [f"not drawn: {why}" for why in manifest.get("not_drawn", {}).values()]


def _endings(name: str, about: Mapping[str, Any]) -> list[str]:
    """What a figure's files have behind its name."""
    return [file.removeprefix(name).removeprefix(".") for file in about["files"]]


def facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of each line; the text is empty where there is nothing to say.

    Args:
        found: of `summary.summarize`.
    """
    yield "store", f"{found['path']}  {found['megabytes']} MB  format {found['format_version']}"
    if "rollouts" not in found:
        yield "rollouts", "none yet; import or generate makes some"
        return
    yield (
        "rollouts",
        (
            f"{found['rollouts']:,} of {found['problems']:,} problems ({found['question_texts']:,} "
            f"question texts), {found['tokens']:,} tokens, longest {found['longest']:,}"
        ),
    )
    yield "rewards", _counts(found["rewards"])
    yield (
        "groups",
        (
            f"{found['groups_with_contrast']:,} with contrast, "
            f"{found['groups_without_contrast']:,} without (all rewards equal: no advantage)"
        ),
    )
    yield "finish", _counts(found["finish"])
    yield "ids", _ids(found)
    yield "labels", _counts(found["labels"])
    yield (
        "by luck",
        f"{found['right_by_luck']} right after a wrong step" * bool(found["right_by_luck"]),
    )
    yield "left out", _counts({**found["set_aside"], "lines refused": found["refused_lines"]})
    yield "undecided", _counts(found.get("undecided", {}))
    yield "sampled by", ", ".join(found["sampled_by"]) or "not known"
    if "scored_by" in found:
        policy = "OFF-POLICY" if found["off_policy"] else "on-policy"
        yield "scored by", f"{found['scored_by']}  ({policy})"
    yield from _probes(found["probes"])
    yield "analyses", ", ".join(found["analyses"]) or "none; run analyze"
    yield "credit", ", ".join(found["credit"])
    old = ", ".join(found.get("made_before_an_append", []))
    yield "to be redone", f"{old} (rollouts were appended)" * bool(old)
    yield "sizes", ", ".join(f"{node} {size} MB" for node, size in _largest(found["megabytes_of"]))
    yield from _maker(found["made_with"])
    if found["holder"]:
        yield (
            "held by",
            "process {pid} on {host} (`{command:.60}`) since {start}".format(**found["holder"]),
        )


def _ids(found: Mapping[str, Any]) -> str:
    mismatch = found["text_mismatch"]
    return _counts(found["ids_origin"]) + f"; {mismatch:,} do not decode to their text" * bool(
        mismatch
    )


def _counts(counts: Mapping[str, int]) -> str:
    """`3 stop, 1 length`, without what there is none of."""
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n)


def _probes(probes: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """A line a probe, unfinished ones first; what there are too many of is counted."""
    ordered = sorted(probes, key=lambda name: (probes[name]["state"] == "finished", name))
    for name in ordered[:PROBES]:
        probe = probes[name]
        if probe["state"] == "finished":
            left = {n: k for n, k in probe["comparability"].items() if n != "ok"}
            not_ok = f"not comparable: {_counts(left)}" if left else "all comparable"
            yield "probe", f"{name}: {probe['conditions']} conditions, {not_ok}"
        elif "rollouts_done" in probe:
            yield "probe", f"{name}: UNFINISHED, has the first {probe['rollouts_done']:,} rollouts"
        else:
            missing = probe["blocks"] - probe["done"]
            yield "probe", f"{name}: UNFINISHED, {missing} of {probe['blocks']} blocks are missing"
    if not probes:
        yield "probes", "none; run probe"
    elif len(ordered) > PROBES:
        yield "probes", f"and {len(ordered) - PROBES} more; --json has all"


def _largest(sizes: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(sizes.items(), key=lambda item: -item[1])[:3]


def _maker(made: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """By what the rollouts were made, and how many makers there are in all."""
    if not made:
        return
    node = "/rollouts" if "/rollouts" in made else next(iter(made))
    about = made[node]
    commit = (about["commit"] or "not in a checkout")[:12]
    changed = ", with uncommitted changes" if about["uncommitted_changes"] else ""
    yield "made by", f"{about['command']}"
    packages = about["packages"]
    versions = [
        f"{n} {packages[n]}" for n in ("tokensense", "torch", "transformers") if n in packages
    ]
    yield "made with", f"{', '.join(versions)}, python {about['python']}; commit {commit}{changed}"
    others = {str(other["packages"]) + str(other["commit"]) for other in made.values()}
    if len(others) > 1:
        yield "", f"other nodes with {len(others) - 1} other versions or commits; --json has all"


def cost(found: Mapping[str, Any]) -> list[str]:
    """What a dry run found, with units.

    Args:
        found: of `probes.cost.estimate`.
    """
    seconds = round(found["remaining_seconds"])
    shown = {
        "rollouts": "{rollouts:,} with {response_tokens:,} response tokens",
        "to score": "{scored_tokens:,} tokens, {remaining_tokens:,} of them left",
        "to feed": "{fed_tokens:,} tokens; {whole_tokens:,} if nothing were shared",
        "at once": "{streams} x {tokens_per_row:,} tokens, path {path}",
        "memory": "{peak_gib:.2f} GiB above the weights ({weights_gib:.2f} GiB); "
        "{free_gib:.2f} GiB are free",
        "time left": f"{seconds // 3600} h {seconds // 60 % 60} min {seconds % 60} s",
    }
    if found["tokens_per_second"] is not None:
        shown["time left"] += (
            "; {tokens_per_second:,.0f} tokens scored a second, as in a sample of {sample_tokens:,}"
            " tokens fed in {sample_seconds:.1f} s"
        )
    texts = {name: text.format(**found) for name, text in shown.items()}
    return lines({**texts, "probes": found["probes"]})


def findings(found: Sequence[tuple[str, str, str]]) -> list[str]:
    """What `health.check` found, and what to do, a line each."""
    todo = {
        "repair": "`info --repair` does it",
        "again": "`info --repair`, then make it again",
        "copy": "restore it from a copy",
    }
    return [f"{place}: {what}. To do: {todo[remedy]}" for place, what, remedy in found]


def lines(result: dict[str, Any], indent: str = "") -> list[str]:
    """A dict as an aligned list, nested dicts indented beneath their name."""
    width = max((len(str(name)) for name in result), default=0)
    shown = []
    for name, value in result.items():
        if isinstance(value, dict):
            shown += [f"{indent}{name}", *lines(value, indent + "  ")]
        else:
            shown.append(f"{indent}{name!s:<{width}}  {value}")
    return shown


def plain(value: object) -> str:
    """A cell of a table."""
    return f"{value:.4f}" if isinstance(value, float) else str("-" if value is None else value)


def print_rows(rows: list[dict[str, str]]) -> None:
    """A table a section; 95 % intervals, difference = verdict - placebo."""
    from itertools import groupby

    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    for section, members in groupby(rows, key=lambda row: row["section"]):
        kept = [{k: v for k, v in row.items() if k != "section"} for row in members]
        shown = Table(*kept[0], title=section, title_justify="left")
        for row in kept:
            shown.add_row(*row.values())
        console.print(shown)
