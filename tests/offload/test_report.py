"""What users read: the readiness line, the placement line, the explanation, and JSON."""

import json

import pytest

from offload.explanation import explain, predicted
from offload.plan import ResidencyPlan
from offload.planner import plan_residency
from offload.report import (
    CardReport,
    ComponentReport,
    ComponentUsage,
    HostReport,
    RequestUsage,
    Snapshot,
    placement_line,
    plan_to_dict,
    readiness_line,
)
from offload.sizes import GIB
from offload.spec import ComponentSpec, ResidencySpec
from tests.offload.facts_kit import budget, component, mission_facts


def mission_plan(free_gib: float = 31.4) -> ResidencyPlan:
    wish = {
        "text_encoder": ComponentSpec(resident_layers=0.8),
        "dit": ComponentSpec(resident_layers="all"),
    }
    room = budget(int(free_gib * GIB), copy_bytes_per_s=25e9, granularity_bytes=2 << 20)
    return plan_residency(ResidencySpec(components=wish), mission_facts(), room)


def test_the_readiness_line_of_the_mission() -> None:
    line = readiness_line(mission_plan()["text_encoder"])
    assert line == "text_encoder: resident=53/66 (permanent), policy=leading"


def test_the_placement_line_of_the_mission() -> None:
    assert placement_line(mission_plan()["text_encoder"]) == (
        "placed 53/66 layers and the trunk (13.59 GiB) of text_encoder on the card at load; "
        "no host copy is kept; by list: visual.blocks 22/27, deepstack_merger_list 2/3, "
        "language_model.layers 29/36"
    )


def test_a_mixed_set_counts_both_lifetimes_and_places_only_one() -> None:
    facts = [component("te", {"m.layers": [10] * 4}), component("dit", {"blocks": [10] * 4})]
    wish = ResidencySpec(components={"all": ComponentSpec(resident_layers=3)})
    made = plan_residency(wish, facts, budget(61))["te"]
    assert readiness_line(made) == "te: resident=3/4 (2 permanent, 1 forward), policy=leading"
    assert placement_line(made) == (
        "placed 2/4 layers and the trunk (20 B) of te on the card at load; no host copy is kept; "
        "by list: m.layers 2/4"
    )


def test_streamed_and_whole_components_have_lines_too() -> None:
    facts = [component("te", {"layers": [10] * 4}, trunk_bytes=6), component("vae", trunk_bytes=5)]
    wish = ResidencySpec(components={"te": ComponentSpec(resident_layers="none")})
    made = plan_residency(wish, facts, budget(31))
    assert readiness_line(made["te"]) == "te: resident=0/4 (streamed), policy=leading"
    assert placement_line(made["te"]) == (
        "placed the trunk (6 B) of te on the card at load; no host copy is kept"
    )
    assert readiness_line(made["vae"]) == "vae: resident=0/0 (permanent), policy=leading"
    tight = plan_residency(wish, facts, budget(26))["vae"]
    assert placement_line(tight).startswith("placed nothing (0 B) of vae")


@pytest.mark.parametrize(
    ("lists", "shown"),
    [
        (["transformer_blocks", "single_transformer_blocks"], None),
        (["encoder.block", "decoder.block"], None),
        (["model.encoder.layers", "model.decoder.layers"], ["encoder.layers", "decoder.layers"]),
        (["a.b.mids", "a.c.mids"], ["b.mids", "c.mids"]),
        (["model.down.0"], ["down.0"]),
        (["layers"], None),
        (["a.blocks", "b.a.blocks"], ["a.blocks", "b.a.blocks"]),
    ],
)
def test_list_names_are_as_short_as_they_can_be_told_apart(
    lists: list[str], shown: list[str] | None
) -> None:
    facts = component("c", {name: [1] for name in lists})
    line = placement_line(plan_residency(ResidencySpec(), [facts], budget(9))["c"])
    expected = ", ".join(f"{name} 1/1" for name in shown or lists)
    assert line.endswith(f"by list: {expected}")


def test_explain_has_a_sentence_per_component_the_budget_and_the_prediction() -> None:
    made = mission_plan(12)
    text = explain(made, mission_facts())
    lines = text.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "text_encoder",
        "transformer",
        "vae",
        "budget",
        "predicted",
        "warning",
    ]
    assert made["text_encoder"].why in lines[0]
    assert f"asked for: {made['text_encoder'].wish}." in lines[0]
    assert "of 12.00 GiB at the peak" in lines[3]
    assert "host to card at 23.28 GiB/s" in lines[3]
    assert "copied a request" in lines[4]
    assert made.warnings[0] in lines[5]
    assert "predicted" not in explain(made)


def test_the_engines_words_stay_out_of_what_users_read() -> None:
    text = explain(mission_plan(12), mission_facts()) + explain(mission_plan(23.5))
    for word in ("arming", "window", "head of stream", "arena"):
        assert word not in text


def test_the_prediction_counts_every_component() -> None:
    facts = [
        component("te", {"b": [10] * 4}, compute_s=1.0),
        component("dit", {"b": [10] * 4}, compute_s=2.0, passes=3),
    ]
    made = plan_residency(ResidencySpec(), facts, budget(80))
    assert predicted(made, facts) == {"request_s": 28.0, "h2d_bytes": 0, "peak_bytes": 80}


def test_a_plan_is_json_with_named_component_reports() -> None:
    made = mission_plan(23.5)
    data = json.loads(json.dumps(plan_to_dict(made)))
    first = data["components"][0]
    assert [one["name"] for one in data["components"]] == ["text_encoder", "transformer", "vae"]
    assert first["units"] == 67
    assert first["layers"] == 66
    assert first["resident_layers"] == 53
    assert first["lists"] == {
        "model.visual.blocks": [22, 27],
        "model.visual.deepstack_merger_list": [2, 3],
        "model.language_model.layers": [29, 36],
    }
    assert first["readiness"] == readiness_line(made["text_encoder"])
    assert first["wish"] == "resident_layers=0.8, lifetime=auto"
    assert first["why"] == made["text_encoder"].why
    assert first["on_card_bytes"] == first["permanent_bytes"]
    assert first["host_bytes"] == first["forward_bytes"] + first["streamed_bytes"]
    assert data["peak_bytes"] == made.peak_bytes <= data["budget"]["num_bytes"]
    assert data["standing_bytes"] == made.standing_bytes
    assert data["warnings"] == []


def test_a_snapshot_is_json_in_the_documented_shape() -> None:
    plan = mission_plan()["vae"]
    report = ComponentReport.of(plan, on_card_bytes=7, host_bytes=8)
    card = CardReport(name="a", memory_bytes=5, allocated_bytes=4, reserved_bytes=3, peak_bytes=2)
    snapshot = Snapshot(
        card=card, host=HostReport(store_bytes=1, pinned_bytes=0), components={"vae": report}
    )
    data = json.loads(json.dumps(snapshot.to_dict()))
    assert data["card"] == {
        "name": "a",
        "memory_bytes": 5,
        "allocated_bytes": 4,
        "reserved_bytes": 3,
        "peak_bytes": 2,
    }
    assert data["host"] == {"store_bytes": 1, "pinned_bytes": 0, "shared": False}
    assert data["components"]["vae"]["on_card_bytes"] == 7
    assert data["components"]["vae"]["host_bytes"] == 8
    assert data["components"]["vae"]["lifetime"] == "permanent"
    assert set(data["components"]["vae"]) == {
        "name",
        "units",
        "layers",
        "resident_layers",
        "lists",
        "lifetime",
        "policy",
        "permanent_bytes",
        "forward_bytes",
        "streamed_bytes",
        "on_card_bytes",
        "host_bytes",
        "readiness",
        "why",
        "wish",
    }


def test_a_requests_totals_are_the_sums_of_its_components() -> None:
    usage = RequestUsage()
    usage.components["te"] = ComponentUsage(copied_bytes=5, stall_s=1.0, arming_s=0.5, passes=1)
    usage.components["dit"] = ComponentUsage(copied_bytes=7, stall_s=2.0, arming_s=0.25)
    usage.peak_bytes, usage.seconds = 99, 4.0
    assert (usage.copied_bytes, usage.stall_s, usage.arming_s) == (12, 3.0, 0.75)
    data = json.loads(json.dumps(usage.to_dict()))
    assert data["copied_bytes"] == 12
    assert data["components"]["te"] == {
        "copied_bytes": 5,
        "stall_s": 1.0,
        "arming_s": 0.5,
        "wasted_bytes": 0,
        "on_the_spot": 0,
        "prefetched": 0,
        "passes": 1,
    }
    assert (data["peak_bytes"], data["seconds"]) == (99, 4.0)
