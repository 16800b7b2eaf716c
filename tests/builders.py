"""Made-up encoders, problems and traces, small enough to reason about in a test."""

from collections.abc import Iterable, Sequence

from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem

BOS, USER, ASSISTANT, END = 256, 257, 258, 259
SPECIALS = {BOS: b"<bos>", USER: b"<user>", ASSISTANT: b"<assistant>", END: b"<end>"}


class ByteEncoder:
    """An Encoder whose tokens are the bytes of UTF-8 (ids 0 to 255) and four specials.

    The prompt reads <bos><user>question<assistant>; an insert stands on a line of its own after the
    question, before it, or before <user> ("system").
    """

    name = "bytes"
    tokenizer_digest = "bytes-1"
    wordings = "english"
    context_length = 4096

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIALS.get(token_id) or bytes([token_id])

    def plain_text(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i not in SPECIALS).decode("utf-8", "replace")

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        spans = [(i, i + 1) for i, c in enumerate(text) for _ in c.encode("utf-8")]
        return self.encode(text), spans

    def render(self, question: str, *, insert: str = "", placement: str = "user_end") -> list[int]:
        before, after, system = "", "", ""
        if insert and placement == "user_end":
            after = "\n" + insert
        elif insert and placement == "user_start":
            before = insert + "\n"
        elif insert:
            system = insert + "\n"
        user = self.encode(before + question + after)
        return [BOS, *self.encode(system), USER, *user, ASSISTANT]


class ListEncoder(ByteEncoder):
    """An Encoder over given pieces: ids are places in the list, the longest match wins.

    Every prompt is token 0, so that the pieces need not spell the question.
    """

    name = "list"
    tokenizer_digest = "list-1"

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [p if isinstance(p, bytes) else p.encode("utf-8") for p in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def encode(self, text: str) -> list[int]:
        raw, ids = text.encode("utf-8"), []
        while raw:
            fits = [i for i, piece in enumerate(self.pieces) if piece and raw.startswith(piece)]
            ids.append(max(fits, key=lambda i: len(self.pieces[i])))
            raw = raw[len(self.pieces[ids[-1]]) :]
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        at = [i for i, c in enumerate(text) for _ in c.encode("utf-8")]
        spans, place, ids = [], 0, self.encode(text)
        for token in ids:
            size = len(self.pieces[token])
            spans.append((at[place], at[place + size - 1] + 1))
            place += size
        return ids, spans

    def render(self, question: str, *, insert: str = "", placement: str = "user_end") -> list[int]:
        return [0]


def problems(count: int, *, source: str = "made up") -> list[Problem]:
    """p0, p1, ...: sums with distinct questions and their right answers."""
    return [
        Problem(name=f"p{i}", question=f"What is {i} + {i}?", answer=str(2 * i), source=source)
        for i in range(count)
    ]


def traces(
    of: Sequence[Problem], group: int, *, generators: Iterable[str] = ("a", "b")
) -> list[Trace]:
    """A group a problem: every other rollout is right, generators take turns, lengths differ."""
    names = list(generators)
    return [
        Trace(
            problem=problem.name,
            name=f"{problem.name}/{k}",
            text=f"So {'really ' * k}it is {problem.answer if k % 2 == 0 else '?'}.",
            reward=float(k % 2 == 0),
            generator=names[k % len(names)],
        )
        for problem in of
        for k in range(group)
    ]


def imported(count: int = 3, *, group: int = 4) -> Imported:
    """`count` problems with `group` rollouts each."""
    made = problems(count)
    return Imported(problems=made, traces=traces(made, group))
