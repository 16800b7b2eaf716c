"""Settings that every test runs under: no network, no screen, the same examples on every run."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# Read when transformers, torch and matplotlib are first imported, so they are set here. One thread:
# torch spends more on waking a second one for ten tokens than on the tokens.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Derandomized: a failure in CI is the same failure on the desk. No deadline: the machine is shared.
settings.register_profile("tokensense", deadline=None, derandomize=True, print_blob=True)
# For tests/test_mutations.py, which asks only whether a test fails: no search for small examples.
settings.register_profile(
    "mutants",
    parent=settings.get_profile("tokensense"),
    phases=(Phase.explicit, Phase.generate),
    print_blob=False,
)
settings.load_profile("tokensense")


def pytest_collection_finish():
    """What was imported stays: collections, which some code asks for, need not walk over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of research notes and data outside the repository; skips where it is absent."""
    beside = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("TOKENSENSE_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"needs the shared folder; {folder} is missing, TOKENSENSE_SHARED can name it")
    return folder
