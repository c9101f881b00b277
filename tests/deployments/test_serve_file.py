"""A Serve file is read as Serve reads it, and each mistake is named with its place."""

from pathlib import Path

import pytest

from deployments.errors import ConfigError
from deployments.serve_file import read_serve_file
from tests.deployments.serve_files import write_serve_file

NO_APPLICATION = "http_options: {port: 1}\n"
NO_ADDRESS = "applications: [{args: {model: {name: demo}}}]\n"


def test_the_configuration_and_the_address_are_read(tmp_path: Path) -> None:
    file = write_serve_file(tmp_path / "file.yaml", "some/model", port=8123)
    read = read_serve_file(str(file))
    assert (read.host, read.port) == ("127.0.0.1", 8123)
    assert read.config.model.path == "some/model"
    assert [card.name for card in read.config.cards.simulated] == ["large", "small"]


def test_the_address_is_serves_own_where_the_file_says_none(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(NO_ADDRESS)
    read = read_serve_file(str(file))
    assert (read.host, read.port) == ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NO_APPLICATION, "has no single entry under 'applications'"),
        ("- a list\n", "holds no mapping"),
        ("a: [", "is no YAML"),
        ("applications: [{args: {}}]", r"args\.model: Field required"),
        (
            "applications: [{args: {model: {name: a, size: 1}, card: {}}}]",
            r"\n  args\.model\.size: Extra .*\n  args\.card: Extra",
        ),
        (
            "applications: [{args: {model: {name: a}, components: {vae: 1.5}}}]",
            r"args\.components\.vae: resident_layers is 1\.5; give auto",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_serve_file(str(file))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no file absent\.yaml; give a Serve file"):
        read_serve_file("absent.yaml")


def test_the_file_for_the_real_checkpoint_says_what_the_mission_says() -> None:
    config = read_serve_file("configs/qwen-image-2.1.yaml").config
    assert config.model.source == "Qwen/Qwen-Image-2.1"
    assert (config.model.dtype, config.model.dtype_of("vae")) == ("bfloat16", "float32")
    assert config.cards.gpu == "require"
    assert config.components["vae"].tiling
    wish = config.to_spec().components
    assert {name: spec.resident_layers for name, spec in wish.items()} == {
        "text_encoder": 0.8,
        "transformer": "all",
        "vae": "all",
    }
    assert {spec.lifetime for spec in wish.values()} == {"auto"}
