"""What can go wrong for a user, one class a place to look.

Every message says what was needed, what came, and what to do, in that order, and names file and
line, rollout or token where there is one. Each leaf is also the standard exception of its kind, so
that generic handlers keep working. `assert` is for our own mistakes and never for a user's.
"""


class TokensenseError(Exception):
    """Root of everything that tokensense raises on purpose."""


class SchemaError(TokensenseError, ValueError):
    """An array, dataset or store lacks the dims, dtype, labels or range that a function needs."""


class InputError(TokensenseError, ValueError):
    """A file or record from outside cannot be read as what it was said to be."""


class PolicyError(TokensenseError, ValueError):
    """A policy cannot be loaded, or cannot do what was asked of it."""


class ConditionError(TokensenseError, ValueError):
    """A probe's condition cannot be built for this policy or these problems."""


class StoreError(TokensenseError, OSError):
    """A store is missing, damaged, of another version, or refuses what would be written to it."""


class LockError(StoreError):
    """Another process holds the store; the message names the process and the host."""


class ProcessError(TokensenseError, RuntimeError):
    """The processes of one run are fewer than asked for, or one of them ended early."""


class StatisticsError(TokensenseError, ValueError):
    """A statistic was asked for on data on which it is not defined."""


class FigureError(TokensenseError, ValueError):
    """A figure was asked for that the stored results cannot fill."""


class MissingExtraError(TokensenseError, ImportError):
    """An optional dependency is needed; the message names the extra that brings it."""
