"""Finds the files that come with Tenure, from any working directory, in a clone and in a wheel.

It knows where the package lies and nothing of what the files mean. ``python -m deployments.paths
configs/quickstart.yaml`` prints the full path, for ``serve run`` with an installed wheel.
"""

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent  # in a wheel configs/ lies in here
ROOT = PACKAGE.parent  # the clone, or site-packages


def resolve(name: str) -> str:
    """The absolute path of ``name``: beside the reader first, then in the clone or the wheel.

    A name that exists nowhere comes back as it is: it is a hub's, or the caller refuses it.
    """
    path = Path(name).expanduser()
    places = (Path.cwd() / path, ROOT / path, PACKAGE / path)
    return next((str(place.resolve()) for place in places if place.exists()), name)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(resolve(argument))
