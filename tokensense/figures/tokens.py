"""Tokens of traces side by side, as one HTML page that needs nothing else.

Reads  a flat Dataset of tokens, as `Study.tokens()` gives it, with states of tokens and weights
       where there are any; questions; the exact bytes of the vocabulary.
Gives  token_view: a TokenView, which a notebook shows and `save` writes.
Sign   as in `shades`: blue above zero, orange below.

The page fetches nothing and runs no script but its own, for search, jumps and a second pane;
without it, as in notebooks, all else works; tokens are escaped by jinja2 and markupsafe, and what
is invisible or acts on its neighbors is written out (`glyphs`). Numbers of a token show when it is
pointed at or in focus. In a notebook the page stands in a frame of its own, so that its styles stay
there; where notebooks are shown without frames (GitHub) only the line above it is seen.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tokensense.errors import SchemaError
from tokensense.figures.export import write_files
from tokensense.figures.glyphs import leads, line_end, plain, text_markup, token_markup
from tokensense.figures.readouts import readouts, states
from tokensense.figures.shades import Coloring, colorings, legend, reach, shade_name, shades
from tokensense.schema import NO_STEP

# JupyterLab keeps every output in memory and in the file; larger pages are named, not shown.
NOTEBOOK_BYTES = 4_000_000
_SCRIPT = re.compile("<script>.*?</script>", re.S)
ALPHAS = (0.1, 0.2, 0.31, 0.42, 0.53, 0.65)
# Thickness of the underline of each step, pixels.
LINES = (1, 1.5, 2, 3, 4, 5)
NEEDED = ("logp", "entropy", "wrong_step", "rollout", "problem", "reward", "generator", "kind",
          "step", "is_wrong_token", "token_id")  # fmt: skip
# State of a token -> class of its mark, and what it means.
STATES = {
    "unresolved": ("u", "unresolved, |contrast| below the wording floor"),
    "not_known": ("k", "state not known, not comparable or no wording floor"),
}


class Question(NamedTuple):
    """What a problem asks.

    Attributes:
        name: the problem's id in its source.
        text: as given.
    """

    name: str
    text: str


@dataclass(frozen=True, repr=False)
class TokenView:
    """A finished page.

    Attributes:
        html: the whole page.
        counts: problems, traces and tokens in it, in words.
    """

    html: str
    counts: str

    def save(self, path: str | Path) -> Path:
        """Write the page to a file; one of that name is replaced.

        Args:
            path: the file; its folder is made where it is missing.

        Returns:
            The path.

        Raises:
            FigureError: it cannot be written.
        """
        path = Path(path)
        write_files(path.parent, {path.name: self.html.encode()})
        return path

    def __repr__(self) -> str:
        return f"TokenView({self.counts}): .save('page.html'), or show it in a notebook"

    def _repr_html_(self) -> str:
        # The frame runs nothing; a script in it would only make browsers complain.
        still = _SCRIPT.sub("", self.html)
        size = len(still.encode())
        if size > NOTEBOOK_BYTES:
            return Markup(
                "<p>Token view, {}: not shown here, because {:.1f} MB are more than the {:g} MB "
                "that a notebook holds well. Call .save('page.html') and open that file, or ask "
                "for fewer problems.</p>"
            ).format(self.counts, size / 1e6, NOTEBOOK_BYTES / 1e6)
        return Markup(
            '<p>Token view, {}:</p><iframe sandbox="" title="Token view" srcdoc="{}" '
            'style="width:100%;height:80vh;border:1px solid #888;resize:vertical"></iframe>'
        ).format(self.counts, still)


class _Token(NamedTuple):
    name: str  # of its classes
    note: str
    text: Markup
    end: str  # of a line


class _Sign(NamedTuple):
    name: str  # of its class
    sample: Markup
    text: str


class _Run(NamedTuple):
    wrong_step: bool
    tokens: list[_Token]


class _Trace(NamedTuple):
    rollout: int
    verdict: str
    facts: str
    runs: list[_Run]


class _Problem(NamedTuple):
    name: str
    question: str
    traces: list[_Trace]


def token_view(
    tokens: xr.Dataset,
    *,
    questions: Mapping[int, Question],
    vocabulary: Mapping[int, bytes],
    notes: Sequence[str] = (),
) -> TokenView:
    """Lay out the tokens of whole rollouts, the rollouts of a problem side by side.

    Args:
        tokens: dims (condition, token), base first, tokens of a rollout together; as
            `Study.tokens()` gives it. Beside that, where there are any: `positive`, `negative`,
            `contrast`, `floor`, `state` (token), as `stats.describe.token_states` gives them, with
            the attribute `wordings`; `weight` (rule, token), NaN where there is none.
        questions: problem index -> what it asks.
        vocabulary: token id -> its exact bytes.
        notes: sentences that stand above the tokens: where they come from, what is not shown.

    Raises:
        SchemaError: `tokens` lacks a part, a rollout's tokens are apart, or a question or token is
            not known.
    """
    starts = _starts(tokens)
    _require_known(tokens, questions, vocabulary)
    found = colorings(tokens)
    cells = _cells(tokens, found, vocabulary)
    problems = _problems(tokens, cells, starts=starts, questions=questions)
    sizes = {"problem": len(problems), "trace": len(starts) - 1, "token": len(cells)}
    counts = ", ".join(f"{size:,} {name}{'s' * (size != 1)}" for name, size in sizes.items())
    script = files("tokensense.figures").joinpath("tokens.js").read_text("utf-8")
    template = _environment().get_template("tokens.html")
    html = template.render(
        counts=counts,
        notes=notes,
        alphas=ALPHAS,
        lines=LINES,
        kinds=_kinds(tokens),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        choices=found,
        signs=_signs(tokens),
        problems=problems,
    )
    return TokenView(html, counts)


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("tokensense", "figures"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "shown": text_markup,
        "shown_plain": plain,
        "legend": legend,
        "reach": reach,
        "shade": shade_name,
    }
    return found


def _starts(tokens: xr.Dataset) -> list[int]:
    """Where each rollout's tokens begin, and the end of the last."""
    missing = [name for name in NEEDED if name not in tokens.variables]
    if missing:
        raise SchemaError(
            f"`tokens` needs {missing}; it has {sorted(map(str, tokens.variables))}. "
            "Take them from Study.tokens()."
        )
    owner = tokens["rollout"].values
    changes = np.flatnonzero(np.diff(owner)) + 1
    starts = [0, *changes.tolist(), owner.size] if owner.size else [0]
    if len(starts) - 1 != np.unique(owner).size:
        raise SchemaError(
            f"`tokens` needs all tokens of a rollout together; {np.unique(owner).size} rollouts "
            f"stand in {len(starts) - 1} pieces. Leave them in the order of Study.tokens()."
        )
    return starts


def _require_known(
    tokens: xr.Dataset, questions: Mapping[int, Question], vocabulary: Mapping[int, bytes]
) -> None:
    """Check that every token has bytes and every problem a question."""
    for name, known in (("token_id", vocabulary), ("problem", questions)):
        lost = sorted(set(tokens[name].values.tolist()) - set(known))
        if lost:
            raise SchemaError(
                f"every {name} of `tokens` needs an entry; {len(lost)} have none, as {lost[0]}. "
                "Take tokens, questions and vocabulary from one store."
            )


def _cells(
    tokens: xr.Dataset, found: Sequence[Coloring], vocabulary: Mapping[int, bytes]
) -> list[_Token]:
    """Every token as it stands in the page, in order."""
    ids = tokens["token_id"].values.tolist()
    shown = {one: token_markup(vocabulary[one]) for one in set(ids)}
    columns = [
        [f"c{index}{name}" if name else "" for name in map(shade_name, shades(coloring).tolist())]
        for index, coloring in enumerate(found)
    ]
    marks = _marks(tokens)
    columns.append([marks.get(state, "") for state in states(tokens)])
    columns.append(["w" if wrong else "" for wrong in tokens["is_wrong_token"].values.tolist()])
    place = {name: f"f{index}" for index, (name, _) in enumerate(_kinds(tokens))}
    columns.append([place[kind] for kind in _kind_names(tokens)])
    columns.append(["d" if leads(vocabulary[one]) else "" for one in ids])
    return [
        _Token(" ".join(filter(None, names)), note, shown[one], line_end(vocabulary[one]))
        for one, note, *names in zip(ids, readouts(tokens, vocabulary), *columns, strict=True)
    ]


def _kind_names(tokens: xr.Dataset) -> list[str]:
    """Kind of each token, in words."""
    return [str(kind).replace("_", " ") for kind in tokens["kind"].values.tolist()]


def _kinds(tokens: xr.Dataset) -> list[tuple[str, int]]:
    """Kinds on the page with their numbers of tokens, most first."""
    return sorted(Counter(_kind_names(tokens)).items(), key=lambda item: (-item[1], item[0]))


def _marks(tokens: xr.Dataset) -> dict[str, str]:
    """State -> class of its mark; none where no state is known: that would mark every token."""
    there = set(states(tokens))
    return {state: name for state, (name, _) in STATES.items() if there - {"not_known", ""}}


def _problems(
    tokens: xr.Dataset,
    cells: Sequence[_Token],
    *,
    starts: Sequence[int],
    questions: Mapping[int, Question],
) -> list[_Problem]:
    """Traces under the problem they answer, problems in the order in which they come."""
    found: dict[int, _Problem] = {}
    for start, stop in pairwise(starts):
        problem = int(tokens["problem"].values[start])
        asked = questions[problem]
        entry = found.setdefault(problem, _Problem(asked.name, asked.text, []))
        entry.traces.append(_trace(tokens.isel(token=slice(start, stop)), cells[start:stop]))
    return list(found.values())


def _trace(one: xr.Dataset, cells: Sequence[_Token]) -> _Trace:
    """One rollout: its heading and its tokens, those of the labelled wrong step apart."""
    rollout = int(one["rollout"].values[0])
    reward, step = float(one["reward"].values[0]), int(one["wrong_step"].values[rollout])
    facts = [f"rollout {rollout}", str(one["generator"].values[0]), f"{len(cells):,} tokens"]
    if one["is_wrong_token"].any():
        facts.append(f"first wrong token {int(one['is_wrong_token'].values.argmax()) + 1}")
    inside = (one["step"].values == step) & (step != NO_STEP)
    if inside.any():
        facts.append(f"labelled wrong step {step}")
    elif step != NO_STEP:
        facts.append(f"labelled wrong step {step}, which no token belongs to")
    runs, place = [], 0
    for wrong, members in groupby(inside.tolist()):
        size = len(list(members))
        runs.append(_Run(wrong, list(cells[place : place + size])))
        place += size
    return _Trace(rollout, _verdict(reward), " · ".join(filter(None, facts)), runs)


def _verdict(reward: float) -> str:
    """What the reward says."""
    words = {1.0: "✓ right", 0.0: "✗ wrong"}
    return "? undecided" if np.isnan(reward) else words.get(reward, f"reward {reward:g}")


def _signs(tokens: xr.Dataset) -> Iterator[_Sign]:
    """What marks and signs mean, with counts."""
    count = Counter(states(tokens))
    for state, name in _marks(tokens).items():
        if count[state]:
            yield _Sign(name, Markup("token"), f"{STATES[state][1]}: {count[state]:,} tokens")
    wrong = int(tokens["is_wrong_token"].values.sum())
    if wrong:
        yield _Sign("w", Markup("token"), f"first wrong token, where it is known: {wrong:,}")
    if (tokens["wrong_step"].values != NO_STEP).any():
        yield _Sign("e", Markup("tokens"), "labelled wrong step")
    yield _Sign("", token_markup(b"  "), "spaces")
    yield _Sign("", token_markup(b"\t"), "tab")
    yield _Sign("", token_markup(b"\n"), "new line")
    yield _Sign("", token_markup(b"\xf0\x9f"), "bytes of a part of a character")
    yield _Sign("", token_markup("\u200b".encode()), "a character that draws nothing")
