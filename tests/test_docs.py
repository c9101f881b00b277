"""What the documentation says exists: links, files, commands, options, routes, metrics, names."""

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from ray.serve.schema import ServeDeploySchema

import offload
from deployments import errors, metrics
from deployments.cli import main
from deployments.config import AppConfig, ServerConfig
from deployments.loading import check_model_folder, find_model_folder
from deployments.model_check import check_model
from deployments.openness import openness_warning
from deployments.paths import resolve
from deployments.serve_file import read_serve_file
from offload import (
    Budget,
    ComponentFacts,
    ComponentSpec,
    ResidencySpec,
    UnitFacts,
    plan_residency,
)
from tests.docs import PAGES, ROOT, Block, anchors, blocks, code_of, commands, links, table_rows

PROGRAMS = {
    "make",
    "serve",
    "tenure",
    "python",
    "python3",
    "pip",
    "curl",
    "kubectl",
    "docker",
    "hf",
    "git",
}


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        path, _, fragment = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if fragment:
            assert fragment in anchors(there), target


# --- commands ------------------------------------------------------------------------------------
def test_there_are_commands_to_check():
    assert {words[0] for _, words in commands()} >= {"make", "serve", "tenure", "curl"}


@pytest.mark.parametrize(("block", "words"), commands(), ids=lambda value: str(value)[:60])
def test_commands_exist(block, words):
    program, *arguments = words
    if "/" in program:  # of the project, or of its environment
        if not program.startswith(".venv/"):
            assert (ROOT / program).stat().st_mode & 0o111, program
        return
    assert program in PROGRAMS, program
    check = {
        "make": check_make,
        "serve": check_files,
        "tenure": check_tenure,
        "python": check_python,
    }
    check.get(program, lambda _: None)(arguments)


def check_make(arguments):
    makefile = (ROOT / "Makefile").read_text()
    for target in arguments:
        if "=" not in target:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def check_files(arguments):
    for argument in arguments:
        if argument.endswith(".yaml"):
            assert Path(resolve(argument)).is_file(), argument


def check_tenure(arguments):
    command = main.commands[arguments[0]]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {a for a in arguments[1:] if a.startswith("-")} <= known
    check_files(arguments)


def check_python(arguments):
    if arguments[0] == "-m" and arguments[1].startswith("deployments."):
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file()


def test_kustomizations_that_are_named_exist():
    named = [w[-1] for _, w in commands() if w[0] == "kubectl"]
    assert named
    for folder in named:
        assert (ROOT / folder / "kustomization.yaml").is_file(), folder


# --- snippets ------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_a_serve_file_or_args_of_one(block: Block):
    content = yaml.safe_load(block.text)
    if "applications" in content:
        ServeDeploySchema.model_validate(content)
        (application,) = content["applications"]
        content = application["args"]
    AppConfig.model_validate({"model": {"name": "demo"}} | content)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_imports_what_exists(block: Block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module == "offload":
            assert {alias.name for alias in node.names} <= set(offload.__all__)


def test_the_librarys_example_runs_as_it_stands():
    import torch

    def component() -> torch.nn.Module:
        return torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    class Pipe:
        """Runs every layer of three components."""

        def __init__(self, *parts) -> None:
            self.parts = parts

        def __call__(self, prompt):
            with torch.no_grad():
                return [layer(prompt) for part in self.parts for layer in part]

    te, dit, vae = component(), component(), component()
    names = {"te": te, "dit": dit, "vae": vae, "pipe": Pipe(te, dit, vae)}
    names["prompt"] = torch.ones(1, 8)
    expected = names["pipe"](names["prompt"])
    (block,) = [b for b in blocks("python") if b.page.name == "residency.md"]
    exec(block.text, names)
    assert all(torch.equal(a, b) for a, b in zip(names["images"], expected, strict=True))


# --- tables --------------------------------------------------------------------------------------
def options_of(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Option path -> default, as a Serve file would say it."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        path, inner = prefix + name, nested(field.annotation)
        default = field.get_default(call_default_factory=True)
        if inner is None:
            found[path] = "required" if field.is_required() else default
        elif path == "components":
            found |= options_of(inner, "components.NAME.")
        elif isinstance(default, tuple):
            found[path] = default
            found |= options_of(inner, f"{path}[].")
        else:
            found |= options_of(inner, f"{path}.")
    return found


def nested(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := nested(a))), None)


def test_every_option_stands_in_the_configuration_page_with_its_default():
    rows = table_rows("docs/configuration.md", "Options")
    written = {code_of(row[0]): row[1] for row in rows}
    options = options_of(AppConfig)
    assert set(written) == set(options)
    for path, default in options.items():
        said = written[path]
        if said == "required":
            assert default == "required", path
            continue
        value = yaml.safe_load(code_of(said))
        assert value == (list(default) if isinstance(default, tuple) else default), path


def wished(**wish) -> str:
    """The warning that a wish for a text encoder of 36 layers gives."""
    layers = tuple(UnitFacts(name=f"l.{i}", list_name="l", num_bytes=1) for i in range(36))
    trunk = UnitFacts(name="trunk", list_name=None, num_bytes=1)
    facts = ComponentFacts(name="text_encoder", group="text_encoder", trunk=trunk, layers=layers)
    name = wish.pop("name", "text_encoder")
    spec = ResidencySpec(components={name: ComponentSpec(**wish)})
    (warning,) = plan_residency(
        spec, (facts,), Budget(num_bytes=1 << 20, copy_bytes_per_s=1)
    ).warnings
    return warning


def raised(call, *arguments, **options) -> str:
    with pytest.raises(Exception, match=r".") as caught:
        call(*arguments, **options)
    return str(caught.value)


def half_downloaded(folder: Path) -> Path:
    (folder / "model.safetensors.incomplete").touch()
    return folder


MESSAGES = {
    "a component that does not exist": lambda folder: raised(
        check_model, misspelt(read_serve_file("configs/quickstart.yaml").config)
    ),
    "the same from Python": lambda folder: raised(wished, name="text_encodr"),
    "a fraction above 1": lambda folder: raised(ComponentSpec, resident_layers=1.5),
    "an unknown lifetime": lambda folder: raised(ComponentSpec, lifetime="forever"),
    "a model folder that is not there": lambda folder: raised(find_model_folder, folder / "none"),
    "a half download": lambda folder: raised(check_model_folder, half_downloaded(folder)),
    "more layers than there are": lambda folder: wished(resident_layers=37),
    "a lifetime without resident layers": lambda folder: wished(
        resident_layers=0, lifetime="permanent"
    ),
    "a policy that chooses nothing": lambda folder: wished(resident_layers="all", policy="spread"),
    "a window without streamed layers": lambda folder: wished(resident_layers="all", window=3),
    "a group without a component": lambda folder: wished(name="image_encoder"),
    "a public address without keys": lambda folder: openness_warning("0.0.0.0", ServerConfig()),
}


def misspelt(config: AppConfig) -> AppConfig:
    return AppConfig.model_validate(config.model_dump() | {"components": {"text_encodr": "all"}})


def test_the_messages_of_the_configuration_page_are_those_that_are_said(tmp_path):
    rows = table_rows("docs/configuration.md", "What is said about mistakes")
    assert {row[0] for row in rows} == set(MESSAGES)
    for case, written, *_ in rows:
        pattern = re.escape(code_of(written)).replace(re.escape("..."), ".+")
        assert re.fullmatch(pattern, MESSAGES[case](tmp_path)), case


def test_every_error_code_stands_in_the_api_page():
    rows = table_rows("docs/api.md", "Errors")
    written = {(int(row[0]), code_of(row[1])) for row in rows}
    raised = {(status, code) for _, status, _, code, _ in errors._ANSWERS}
    elsewhere = {(status, code) for status, code in errors.HTTP_CODES.items() if status != 400}
    elsewhere |= {(404, "not_found"), (500, "internal_error")}
    assert written == raised | elsewhere


def test_every_metric_stands_in_the_metrics_page():
    names = {v for v in vars(metrics).values() if isinstance(v, str) and v.startswith("tenure_")}
    written = {code_of(row[0]).removesuffix("_total") for row in table_rows("docs/metrics.md")}
    assert written == names


def test_every_path_of_the_readmes_tree_exists():
    (tree,) = [b for b in blocks("text") if b.page.name == "README.md" and "offload/" in b.text]
    folder = ""
    for line in tree.text.splitlines():
        match = re.match(r"^( *)(\S+)", line)
        if not match:
            continue
        indent, name = len(match[1]), match[2]
        folder = name if not indent and name.endswith("/") else folder if indent else ""
        path = ROOT / folder / name if indent else ROOT / name
        assert path.exists(), path.relative_to(ROOT)


def test_every_decision_is_listed():
    listed = {target for target in links(ROOT / "docs/decisions/README.md")}
    pages = {page.name for page in (ROOT / "docs/decisions").glob("0*.md")}
    assert listed == pages


def test_the_changelog_names_every_version_up_to_this_one():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[(Unreleased|\d+\.\d+\.\d+)\]", text, re.MULTILINE)
