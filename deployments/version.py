"""The version of this project, as it was installed."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """``0.1.0``, or a word that says that the project runs without being installed."""
    try:
        return installed("tenure")
    except PackageNotFoundError:
        return "not-installed"
