"""Facts that follow from a measured request, and the same request with other steps."""

from dataclasses import replace

from offload.facts import ComponentFacts, UnitFacts
from offload.measured import ComponentMeasured, Measured, for_steps, with_measured


def layer(name: str, **changes) -> UnitFacts:
    return UnitFacts(name=name, list_name="blocks", num_bytes=100, **changes)


def component(name="transformer", group="dit") -> ComponentFacts:
    trunk = UnitFacts(name="trunk", list_name=None, num_bytes=10)
    layers = (layer("a", compute_s=9.0), layer("b"), layer("c"))
    return ComponentFacts(name=name, group=group, trunk=trunk, layers=layers, passes=20)


SEEN = ComponentMeasured(
    passes=6,
    uses={"a": 6, "b": 3},
    order=("a", "b"),
    first_s={"trunk": 0.5, "a": 2.0, "b": 3.0},
    later_s={"trunk": 0.25, "a": 1.0},
    activation_bytes=77,
)


def measured(**components: ComponentMeasured) -> Measured:
    return Measured(components=components, source="measured at 8x8")


def test_facts_say_what_was_seen():
    (facts,) = with_measured([component()], measured(transformer=SEEN))
    assert (facts.passes, facts.activation_bytes) == (6, 77)
    assert facts.activation_source == "measured at 8x8"
    assert (facts.trunk.first_s, facts.trunk.compute_s) == (0.5, 0.25)
    a, b, c = facts.layers
    assert (a.uses, a.first_s, a.compute_s) == (1, 2.0, 1.0)
    assert (b.uses, b.first_s, b.compute_s) == (1, 3.0, 3.0)  # seen in the first pass only
    assert c.uses == 0


def test_a_component_that_did_not_run_keeps_its_facts():
    other = component("vae", "vae")
    assert with_measured([other], measured(transformer=SEEN)) == (other,)


def test_a_denoiser_runs_as_often_in_every_step_and_encoders_do_not():
    twice = replace(SEEN, uses={"a": 2}, passes=6)
    facts = [component(), component("text_encoder", "text_encoder")]
    scaled = for_steps(measured(transformer=SEEN, text_encoder=twice), facts, 3, 20)
    assert scaled.components["transformer"].passes == 40
    assert scaled.components["transformer"].uses == {"a": 40, "b": 20}
    assert scaled.components["text_encoder"] == twice


def test_gaps_of_a_step_come_with_every_step():
    facts = [component()]
    alternating = replace(SEEN, passes=3, gaps=(("controlnet",),) * 2)
    scaled = for_steps(measured(transformer=alternating), facts, 3, 5)
    assert scaled.components["transformer"].gaps == (("controlnet",),) * 4
    inner = replace(SEEN, gaps=(("c",), ("d",)) * 2 + (("c",),))  # two runs a step
    scaled = for_steps(measured(transformer=inner), facts, 3, 4)
    assert scaled.components["transformer"].gaps == (("c",), ("d",)) * 3 + (("c",),)


def test_a_component_that_did_not_run_in_whole_steps_is_left_alone():
    odd = replace(SEEN, passes=4)
    none = replace(SEEN, passes=0)
    facts = [component(), component("refiner", "other")]
    given = measured(transformer=odd, refiner=none)
    assert for_steps(given, facts, 3, 20) == given
