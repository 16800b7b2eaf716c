"""One probe to be scored, and how far the store has come with it.

Reads  an Archive.
Gives  Work; start_probe, require_started; done_tokens.
Sign   none of its own.

Source: design section 4.
"""

from typing import Any, NamedTuple

from tokensense.errors import LockError, StoreError
from tokensense.probes.conditions import Condition
from tokensense.probes.contexts import Survey
from tokensense.schema import BASE
from tokensense.store.archive import Archive
from tokensense.store.probing import require_equal


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

    def longest(self, index: int) -> tuple[int, int]:
        """The longest branch of one block: fed tokens, and its rollout."""
        start, end = self.blocks[index]
        rollout = start + int(self.survey.longest[start:end].argmax())
        return int(self.survey.longest[rollout]), rollout


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
    require_equal(archive.header(work.name) or {}, work.header, work.name)


def done_tokens(archive: Archive, work: Work) -> int:
    """Scored tokens that are in the store; blocks of another plan count for nothing."""
    if archive.is_finished(work.name):
        return int(work.survey.scored.sum())
    return sum(work.tokens(i) for i in archive.done_blocks(work.name) if i < len(work.blocks))
