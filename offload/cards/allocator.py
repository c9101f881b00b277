"""Settings of torch's card allocator; to be in the environment before torch first uses the card.

Without expandable segments a freed 11 GiB arena is split by the next activation, one small tensor
that lives on pins the piece, and the next arena does not fit although the bytes are free.
"""

import re
from collections.abc import Mapping

from offload.errors import CardError

GENERAL = "PYTORCH_ALLOC_CONF"
CUDA_ONLY = "PYTORCH_CUDA_ALLOC_CONF"  # the older name; it wins where both are set
EXPANDABLE = "expandable_segments"


def allocator_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to ``environ``: expandable segments on, all that the user set kept.

    Empty where the user has decided about expandable segments. CardError on an allocator whose
    statistics read zero.
    """
    name = CUDA_ONLY if environ.get(CUDA_ONLY, "").strip() else GENERAL
    wanted = environ.get(name, "").strip()
    if re.search(r"(^|,)\s*backend\s*:\s*cudaMallocAsync", wanted):
        raise CardError(
            f"{name}={wanted} asks for cudaMallocAsync, whose memory statistics read zero, so no "
            "plan could be held to its budget; remove backend:cudaMallocAsync"
        )
    if re.search(rf"(^|,)\s*{EXPANDABLE}\s*:", wanted):
        return {}
    return {name: ",".join(filter(None, (wanted, f"{EXPANDABLE}:True")))}
