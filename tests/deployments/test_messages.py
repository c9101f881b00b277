"""What crosses processes: plain dicts that a program without this package can read."""

import pytest

from deployments.latency import Latency
from deployments.messages import (
    CardState,
    DrawnImage,
    GenerateJob,
    GenerateResult,
    Preview,
    ReplicaState,
    State,
    StepEvent,
)

PLAIN = (type(None), bool, int, float, str, bytes)
JOB = GenerateJob(
    request_id="r", prompt="p", width=8, height=16, steps=3, seed=5, images=2, true_cfg_scale=2.0
)
RESULT = GenerateResult(
    images=(DrawnImage(data=b"\x89", seed=5),), replica="one", usage={"seconds": 1.0}, seconds=0.5
)
STATE = ReplicaState(
    id="one",
    card=CardState(name="mini", memory_bytes=8, free_bytes=7, simulated=True, uuid="u"),
    state=State.BUSY,
    components=({"name": "vae"},),
    wish={"vae": "all"},
    warnings=("small",),
    latency=Latency().with_one(1.0).to_dict(),
    stages={"load": 1.0},
)


def is_plain(value) -> bool:
    """Built-in types only, and exactly those: a subclass needs its module to be read."""
    if type(value) is dict:
        return all(is_plain(part) for pair in value.items() for part in pair)
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return type(value) in PLAIN


EDIT = GenerateJob(
    request_id="r", prompt="p", width=8, height=8, steps=3, seed=5, inputs=(b"a", b"b"), mask=b"c"
)
STEP = StepEvent(step=1, of=2, left_s=0.5)
SEEN = StepEvent(step=1, of=2, preview=Preview(data=b"a", image=0, index=1))


@pytest.mark.parametrize("message", [JOB, EDIT, RESULT, STATE, STEP, SEEN])
def test_a_message_is_plain_and_comes_back_equal(message):
    values = message.to_dict()
    assert is_plain(values)
    assert type(message).from_dict(values) == message


def test_a_field_that_is_not_known_is_refused_by_name():
    with pytest.raises(ValueError, match="GenerateJob has no field colour"):
        GenerateJob.from_dict({**JOB.to_dict(), "colour": "red"})


def test_each_image_has_its_own_seed():
    assert JOB.seeds == (5, 6)
