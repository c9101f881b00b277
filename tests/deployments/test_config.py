"""What one Serve file may say, and the words of a refusal: the same from YAML and from Python."""

import pickle

import pytest
import yaml
from pydantic import ValidationError

from deployments.config import AppConfig, parse_size
from deployments.paths import ROOT
from offload import ComponentSpec, ResidencySpec, SpecError

MODEL = {"name": "demo", "path": "deployments/demo/checkpoint"}


def from_yaml(text: str) -> AppConfig:
    return AppConfig.model_validate({"model": MODEL, **yaml.safe_load(text)})


def message_of(text: str) -> str:
    with pytest.raises(ValidationError) as caught:
        from_yaml(text)
    return str(caught.value)


def test_a_bare_value_is_resident_layers():
    spec = from_yaml("components: {vae: all, dit: 3, text_encoder: 0.8}").to_spec()
    assert spec.components["vae"] == ComponentSpec(resident_layers="all")
    assert spec.components["dit"] == ComponentSpec(resident_layers=3)
    assert spec.components["text_encoder"] == ComponentSpec(resident_layers=0.8)


def test_every_option_of_the_wish_reaches_the_spec():
    config = from_yaml(
        """
        components:
          text_encoder: {resident_layers: 4, lifetime: permanent, policy: spread, window: 3}
        when_it_does_not_fit: refuse
        """
    )
    wish = ComponentSpec(resident_layers=4, lifetime="permanent", policy="spread", window=3)
    assert config.to_spec() == ResidencySpec(
        components={"text_encoder": wish}, when_it_does_not_fit="refuse"
    )


def test_tiling_is_a_setting_of_the_component_and_no_wish():
    config = from_yaml("components: {vae: {resident_layers: all, tiling: true}}")
    assert config.components["vae"].tiling
    assert config.to_spec().components["vae"] == ComponentSpec(resident_layers="all")


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        "most",
        -1,
        True,
        {"lifetime": "forever"},
        {"policy": "random"},
        {"window": 1},
        {"lifetme": "auto"},
    ],
)
def test_yaml_and_python_refuse_a_wish_with_the_same_words(value):
    with pytest.raises(SpecError) as from_python:
        ComponentSpec.from_value(value)
    assert str(from_python.value) in message_of(yaml.safe_dump({"components": {"vae": value}}))


def test_what_to_do_when_it_does_not_fit_is_refused_with_the_same_words():
    with pytest.raises(SpecError) as from_python:
        ResidencySpec(when_it_does_not_fit="hope")
    assert str(from_python.value) in message_of("when_it_does_not_fit: hope")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("modle: {}", "modle"),
        ("limits: {max_pixel: 1}", "limits.max_pixel"),
        ("cards: {simulated: [{name: a, memory: 1MiB, rat: 1}]}", "cards.simulated.0.rat"),
        ("server: {request_timeout_s: 0}", "server.request_timeout_s"),
        ("server: {sleep_after_s: 0}", "server.sleep_after_s"),
        ("server: {sleep_after_s: never}", "server.sleep_after_s"),
        ("calibrate: sometimes", "calibrate"),
        ("host_store: shared", "host_store"),
        ("cards: {gpu: maybe}", "cards.gpu"),
    ],
)
def test_a_field_that_is_unknown_or_cannot_be_is_refused_by_its_name(text, where):
    assert where in message_of(text)


def test_a_default_beyond_the_limits_is_refused():
    assert "above limits.max_pixels 100" in message_of(
        "{limits: {max_pixels: 100}, defaults: {size: 11x10}}"
    )
    assert "above limits.max_steps 10" in message_of(
        "{limits: {max_steps: 10}, defaults: {size: 8x8, steps: 11}}"
    )


def test_a_simulated_card_reads_sizes_and_rates():
    text = "cards: {simulated: [{name: mini, memory: 24MiB, rate: 400MB/s, used: 1KiB}]}"
    card = from_yaml(text).cards.simulated[0]
    assert (card.memory_bytes, card.bytes_per_s, card.used_bytes) == (24 << 20, 400e6, 1024)


@pytest.mark.parametrize(
    "fields", ["memory: 0", "memory: 1MiB, rate: 0", "memory: 1, used: -1", "memory: 1, used: 1"]
)
def test_a_simulated_card_without_memory_or_link_is_refused(fields):
    assert "cards.simulated.0" in message_of(f"cards: {{simulated: [{{name: mini, {fields}}}]}}")


@pytest.mark.parametrize("memory", ["24 apples", "-3MiB"])
def test_a_size_that_is_no_size_is_refused_by_its_name(memory):
    assert "cards.simulated.0" in message_of(
        yaml.safe_dump({"cards": {"simulated": [{"name": "mini", "memory": memory}]}})
    )


def test_replicas_are_at_least_one():
    assert "replicas is 0" in message_of("cards: {replicas: 0}")


def test_a_relative_model_path_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = from_yaml("{}").model
    assert model.source == str(ROOT / "deployments" / "demo" / "checkpoint")


def test_a_model_without_a_folder_keeps_its_hub_name():
    config = AppConfig.model_validate({"model": {"name": "some-owner/some-model"}})
    assert config.model.source == "some-owner/some-model"


def test_component_dtypes_are_exceptions_to_the_dtype():
    model = from_yaml("{}").model.model_copy(update={"component_dtypes": {"vae": "float32"}})
    assert model.dtype_of("vae") == "float32"
    assert model.dtype_of("transformer") == "bfloat16"


def test_a_config_crosses_processes():
    config = from_yaml("components: {vae: {resident_layers: all, tiling: true}}")
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("text", ["128", "x128", "0x128", "128x0", "-1x8", "1.5x8", "axb", ""])
def test_a_size_is_two_whole_numbers(text):
    with pytest.raises(ValueError, match="WIDTHxHEIGHT"):
        parse_size(text)
    assert parse_size("128x96") == (128, 96)
