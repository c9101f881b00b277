"""Errors of a card are told apart: full, lost, or none of the card's business."""

import pytest
import torch

from offload.cards.failure import is_out_of_memory, is_sticky
from offload.cards.simulated import SimulatedOutOfMemory


def accelerator_error(code: int) -> torch.AcceleratorError:
    error = torch.AcceleratorError(f"CUDA error: {code}")
    error.error_code = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        SimulatedOutOfMemory("out of memory on card mini"),
        accelerator_error(2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA driver error: out of memory"),
    ],
)
def test_a_full_card_is_out_of_memory_and_its_context_is_whole(error):
    assert is_out_of_memory(error)
    assert not is_sticky(error)


@pytest.mark.parametrize("code", [700, 710, 719])
def test_a_lost_context_is_sticky_and_not_out_of_memory(code):
    assert is_sticky(accelerator_error(code))
    assert not is_out_of_memory(accelerator_error(code))


def test_an_accelerator_error_without_a_code_is_taken_for_the_worst():
    assert is_sticky(torch.AcceleratorError("CUDA error: unspecified launch failure"))


@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), ValueError("out of memory"), KeyboardInterrupt()]
)
def test_other_errors_are_neither(error):
    assert not is_out_of_memory(error)
    assert not is_sticky(error)
