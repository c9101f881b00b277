"""What an error says about the card: out of memory can be answered, a lost context cannot.

Only a string and counters may outlive the ``except`` block that asks here: the error's traceback
holds the frames, and the frames hold the activations.
"""

import torch

_ACCELERATOR_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, and its equals elsewhere
_OUT_OF_MEMORY_TEXTS = (  # memory that libraries take outside torch's pool
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """The card was full. Its context is whole: free something and try again."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _ACCELERATOR_OUT_OF_MEMORY
    return isinstance(error, RuntimeError) and any(t in str(error) for t in _OUT_OF_MEMORY_TEXTS)


def is_sticky(error: BaseException) -> bool:
    """The context is lost (illegal address, device-side assert): replace the process."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)
