"""One probe to be scored, and how far the store has come with it.

Reads  an Archive.
Gives  Work; start_probe, require_started, require_same_conditions; done_tokens.
Sign   none of its own.

Source: design section 4.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tokensense.errors import LockError, StoreError
from tokensense.probes.conditions import Condition
from tokensense.probes.contexts import Survey
from tokensense.schema import BASE
from tokensense.store.archive import Archive
from tokensense.store.probing import has_plan, header_of, read_plan, require_equal
from tokensense.store.tree import WORK


class Work(NamedTuple):
    """One probe, ready to be scored.

    Attributes:
        name: of the probe.
        conditions: in the order of dim `condition`.
        survey: verdicts and sizes.
        blocks: rollouts [start, end) of each block.
        header: all that decides the bytes of the node.
    """

    name: str
    conditions: tuple[Condition, ...]
    survey: Survey
    blocks: list[tuple[int, int]]
    header: dict[str, Any]

    def tokens(self, index: int) -> int:
        """Scored tokens of one block."""
        start, end = self.blocks[index]
        return int(self.survey.scored[start:end].sum())


def start_probe(archive: Archive, work: Work) -> list[int]:
    """Start or resume a probe; gives the blocks to score, see `Archive.start_probe`.

    Raises:
        StoreError: other policy, rollouts or settings; a base that cannot be used again says so in
            its own words.
        LockError: another run writes to the store.
    """
    try:
        return archive.start_probe(work.name, work.header, work.blocks)
    except LockError:
        raise
    except StoreError as cause:
        if work.name != BASE:
            raise
        raise StoreError(
            "probes of one store share its base, so they need the policy and the settings that the "
            f"base was scored with: {cause} Use the same settings, or another store."
        ) from cause


def require_started(archive: Archive, work: Work) -> None:
    """Check that another process has started this very probe.

    Raises:
        StoreError: it was not started, or with other settings, as on another kind of device.
    """
    require_equal(_stored_header(archive, work) or {}, work.header, work.name)


def require_same_conditions(archive: Archive, todo: Sequence[Work]) -> None:
    """Refuse other conditions for a probe that was started, before an hour goes into the others.

    Raises:
        StoreError: they differ from those asked for now.
    """
    for work in todo:
        header = _stored_header(archive, work)
        if header is None:
            continue
        stored = header["conditions"]
        asked = work.header["conditions"]
        if stored != asked:
            new, gone = (
                [c["name"] for c in a if c not in b] for a, b in ((asked, stored), (stored, asked))
            )
            raise StoreError(
                f"probe `{work.name}` needs the {len(stored)} conditions that it was started with; "
                f"{len(asked)} came (new: {_some(new)}; missing: {_some(gone)}). Ask with the same "
                "frames and families, give more conditions in a file of your own as a probe of "
                "another name, or use another store; nothing was scored."
            )


def done_tokens(archive: Archive, work: Work) -> int:
    """Scored tokens that are in the store; blocks of another plan count for nothing."""
    if archive.is_finished(work.name):
        return int(work.survey.scored.sum())
    return sum(work.tokens(i) for i in archive.done_blocks(work.name) if i < len(work.blocks))


def _stored_header(archive: Archive, work: Work) -> dict[str, Any] | None:
    """The header that a probe was started with, None if it was not."""
    if archive.is_finished(work.name):
        return header_of(archive.path, work.name)
    if has_plan(archive.path / WORK, work.name):
        return read_plan(archive.path / WORK, work.name).header
    return None


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(names[:3]) or "none") + more
