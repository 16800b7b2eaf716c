"""Where the files lie that come with the package: policies, claims, calibration.

Reads  nothing.
Gives  bundled.

Source: own work.
"""

from importlib import resources
from pathlib import Path


def bundled(name: str) -> Path:
    """A file or folder of `data/`: inside an installed package, else of the checkout.

    Args:
        name: its path below `data/`. It need not exist.
    """
    package = Path(str(resources.files("tokensense")))
    installed = package / "data" / name
    return installed if installed.exists() else package.parent / "data" / name
