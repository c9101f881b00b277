"""The allocator gets expandable segments, and everything that the user set stays."""

import subprocess
import sys

import pytest

from offload.cards.allocator import allocator_settings
from offload.errors import CardError

GENERAL, OLDER = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({}, {GENERAL: "expandable_segments:True"}),
        ({GENERAL: "  "}, {GENERAL: "expandable_segments:True"}),
        (
            {GENERAL: "roundup_power2_divisions:[256:1,512:2]"},
            {GENERAL: "roundup_power2_divisions:[256:1,512:2],expandable_segments:True"},
        ),
        (
            {GENERAL: "max_split_size_mb:64", OLDER: "pinned_num_register_threads:8"},
            {OLDER: "pinned_num_register_threads:8,expandable_segments:True"},
        ),
        ({GENERAL: "expandable_segments:False"}, {}),
        ({OLDER: "max_split_size_mb:64, expandable_segments : True"}, {}),
        (
            {GENERAL: "not_expandable_segments:True"},
            {GENERAL: "not_expandable_segments:True,expandable_segments:True"},
        ),
    ],
)
def test_expandable_segments_are_added_where_the_user_has_not_decided(environ, settings):
    assert allocator_settings(environ) == settings


@pytest.mark.parametrize("name", [GENERAL, OLDER])
def test_an_allocator_without_figures_is_refused(name):
    with pytest.raises(CardError, match=f"{name}=.*cudaMallocAsync"):
        allocator_settings({name: "max_split_size_mb:64,backend:cudaMallocAsync"})


def test_the_settings_are_known_before_torch_is_imported():
    ask = (
        "import sys; from offload.cards import allocator_settings; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0
