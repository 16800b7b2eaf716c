"""The store: archive, layout, lock and provenance. Never imports torch or transformers."""

from tokensense.store.archive import Archive
from tokensense.store.inventory import info

__all__ = ["Archive", "info"]
