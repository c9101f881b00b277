"""Guarantee: seconds of one request and live bytes of a like one are put together by component."""

from offload.measured import ComponentMeasured, Measured, with_live_bytes


def test_seconds_stay_and_bytes_come_from_the_counted_request() -> None:
    timed = Measured(
        components={
            "vae": ComponentMeasured(passes=1, later_s={"trunk": 1.0}),
            "dit": ComponentMeasured(passes=2),
        },
        seconds=3.0,
        peak_bytes=10,
    )
    counted = Measured(
        components={"vae": ComponentMeasured(passes=1, later_s={"trunk": 9.0}, activation_bytes=7)},
        seconds=30.0,
        peak_bytes=17,
    )
    both = with_live_bytes(timed, counted)
    assert both.components["vae"] == ComponentMeasured(
        passes=1, later_s={"trunk": 1.0}, activation_bytes=7
    )
    assert both.components["dit"] == timed.components["dit"]
    assert (both.seconds, both.peak_bytes) == (3.0, 17)
