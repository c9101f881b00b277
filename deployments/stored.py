"""Does a checkpoint hold what its configuration says? Names, shapes, counts; no weight, no torch.

Loading follows the configuration and stops where the two disagree, so planning says it beforehand.
"""

from collections.abc import Collection, Iterator, Mapping
from math import prod

from deployments.weights import TensorHeader

Shape = tuple[int, ...]
TOLERANCE = 0.01  # buffers that are stored or not


def disagreements(
    name: str,
    built: Mapping[str, Shape],
    stored: Mapping[str, TensorHeader],
    tied: Collection[str] = (),
) -> Iterator[str]:
    """What is said about one component; nothing where no weights are there.

    Names may differ: transformers renames weights of older checkpoints while loading. ``tied`` are
    second names of weights, which a checkpoint may hold or not.
    """
    if not stored:
        return
    both = sorted(built.keys() & stored.keys())
    unlike = [key for key in both if built[key] != stored[key].shape]
    if unlike:
        key, more = unlike[0], f" (and {len(unlike) - 1} more)" if len(unlike) > 1 else ""
        yield (
            f"{name}: {key} is {list(stored[key].shape)} in the checkpoint and "
            f"{list(built[key])} by its config.json{more}; the plan follows config.json"
        )
        return
    most = sum(map(prod, built.values()))
    least = most - sum(prod(built[key]) for key in tied)
    found = sum(header.num_elements for header in stored.values())
    if not least * (1 - TOLERANCE) <= found <= most * (1 + TOLERANCE):
        yield (
            f"{name}: the checkpoint holds {found} numbers and its config.json means {least}; "
            "the plan follows config.json"
        )
