import os

import pytest


@pytest.fixture(autouse=True, scope="module")
def _without_flushing():
    """No power cut in these tests: `tests/store` has them. Flushing is most of their time.

    Processes that are forked inherit it.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        yield
