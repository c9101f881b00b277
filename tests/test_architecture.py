"""The shape of the house: who may import whom, what stays torch-free, and how large things get.

The rules are those of docs/architecture.md, read from the source; no list of today's files, so a
new file is held to them from its first day.
"""

import ast
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.metadata import packages_distributions
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import offload
from deployments.config import AppConfig
from offload import ComponentSpec, ResidencySpec
from scripts.check_file_sizes import listed_files
from scripts.cover_core import core_modules
from scripts.import_graph import (
    ROOT,
    closure,
    imports_of,
    module_name,
    project_modules,
    source_files,
    targets,
)

# Each may import those before it, never those after it; modules not named here only need to obey
# the rules below.
DIRECTIONS = {
    "offload, above the torch line": [
        {"sizes", "errors"},
        {"spec", "facts"},
        {"plan"},
        {"schedule"},
        {"planner", "report"},
    ],
    "offload, below the torch line": [
        {"live_ledger", "listener"},
        {"survey", "cards.base", "cards.order"},
        {"probe"},
        {"unit"},
        {"host_store", "transfer"},
        {"component"},
        {"residency"},
    ],
    "deployments": [
        {"schema", "messages", "config", "errors"},
        {"api", "pipeline", "metrics"},
        {"replica", "router"},
        {"driver"},
        {"app"},
    ],
}
TORCH_FREE = ("app", "config", "driver", "router", "fleet", "cli", "api", "metrics", "paths")
LIBRARY_MAY_IMPORT = {"torch", "safetensors", "pynvml"}
CODE = [path for name in ("offload", "deployments", "scripts") for path in source_files(name)]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def top_levels(path, *, late):
    """The packages that a file imports, by their first name."""
    return {item.module.partition(".")[0] for item in imports_of(path, late=late)}


def importers_of(package):
    return {relative(path) for path in CODE if package in top_levels(path, late=True)}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_imports_run_one_way(direction):
    package = direction.partition(",")[0]
    steps = [{f"{package}.{name}" for name in step} for step in DIRECTIONS[direction]]
    for index, step in enumerate(steps):
        later = set().union(*steps[index + 1 :])
        for module in sorted(step):
            assert not closure([module]) & later, module


def test_every_module_that_a_direction_names_exists():
    named = {
        f"{direction.partition(',')[0]}.{name}"
        for direction, steps in DIRECTIONS.items()
        for name in set().union(*steps)
    }
    assert named <= set(project_modules())


def test_no_module_imports_itself_through_others():
    modules = project_modules()
    graph = {name: targets(imports_of(path), modules) for name, path in modules.items()}
    for name in graph:  # a module's own package is loaded before it, and its door is lazy
        graph[name] -= {name.rpartition(".")[0]}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_library_knows_nothing_of_the_application():
    for path in source_files("offload"):
        foreign = top_levels(path, late=True) - set(sys.stdlib_module_names) - {"offload"}
        assert foreign <= LIBRARY_MAY_IMPORT, relative(path)


def test_nvml_is_imported_only_when_a_card_is_looked_for():
    for path in CODE:
        assert "pynvml" not in top_levels(path, late=False), relative(path)


def test_above_the_torch_line_there_is_only_the_standard_library():
    for name in core_modules():
        packages = top_levels(project_modules()[name], late=True)
        assert packages <= set(sys.stdlib_module_names) | {"offload"}, name


def test_the_application_enters_the_library_by_its_door():
    for path in source_files("deployments"):
        for item in imports_of(path, late=True):
            assert not item.module.startswith("offload."), relative(path)
            if item.module == "offload" and item.name:
                assert item.name in offload.__all__, relative(path)


def test_only_pipeline_imports_diffusers():
    served = {name for name in importers_of("diffusers") if "/demo/" not in name}
    assert served == {"deployments/pipeline.py"}


def test_the_http_surface_knows_neither_ray_nor_torch():
    reached = [project_modules()[name] for name in closure(["deployments.api"], late=True)]
    for path in reached:
        if path.parts[-2] == "deployments":
            assert not top_levels(path, late=True) & {"ray", "torch"}, relative(path)


def test_only_app_binds_deployments():
    binding = set()
    for path in source_files("deployments"):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
        if "bind" in names and "ray" in top_levels(path, late=True):
            binding.add(relative(path))
    assert binding == {"deployments/app.py"}


def test_the_builder_sees_real_annotations():
    """With postponed annotations Serve would hand the builder a raw dict, silently."""
    imports = imports_of(ROOT / "deployments/app.py", late=True)
    assert not any(item.module == "__future__" for item in imports)


def first_to_bring_torch(modules):
    """Import in turn in a fresh process; the name of the module after which torch is there."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(name)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *modules], cwd=ROOT, capture_output=True, text=True
    )
    return run.stderr


def test_entry_points_and_the_planner_import_no_torch():
    entries = [f"deployments.{name}" for name in TORCH_FREE]
    assert first_to_bring_torch(["offload", *core_modules(), *entries]) == ""


def test_a_module_that_brings_torch_would_be_named():
    assert first_to_bring_torch(["offload", "offload.unit"]).strip() == "offload.unit"


def test_the_door_is_sorted_and_every_name_leads_somewhere():
    assert list(offload.__all__) == sorted(offload.__all__)
    for module in project_modules():
        if module.startswith("offload."):  # a submodule must not hide a name of the door
            import_module(module)
    for name in offload.__all__:
        assert not isinstance(getattr(offload, name), ModuleType), name
    assert set(offload.__all__) <= set(dir(offload))
    with pytest.raises(AttributeError, match="no_such_name"):
        offload.no_such_name  # noqa: B018


def attribute_names(path):
    return {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}


def test_memory_is_ordered_by_events_and_owned_by_references():
    """``record_stream`` would make peaks inexact; a synchronize on the hot path stops the host."""
    for path in source_files("offload"):
        assert "record_stream" not in attribute_names(path), relative(path)
    hot = [n for n in closure(["offload.component"]) if not n.startswith("offload.cards")]
    for path in (project_modules()[name] for name in sorted(hot)):
        assert "synchronize" not in attribute_names(path), relative(path)


def test_no_file_is_over_300_lines_and_no_function_over_40():
    for path in CODE:
        text = path.read_text()
        assert text.count("\n") <= 300, relative(path)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = node.end_lineno - node.lineno  # the line with its name is not counted
                assert length <= 40, f"{relative(path)}: {node.name} has {length} lines"


def test_the_dials_are_few_and_frozen():
    """A new option is a decision: change this list and docs/configuration.md together."""
    component = ["resident_layers", "lifetime", "policy", "window"]
    assert list(ComponentSpec.__dataclass_fields__) == component
    assert list(ResidencySpec.__dataclass_fields__) == ["components", "when_it_does_not_fit"]
    assert list(AppConfig.model_fields) == [
        "model",
        "components",
        "when_it_does_not_fit",
        "cards",
        "placement",
        "limits",
        "defaults",
        "host_store",
        "pin_budget",
        "calibrate",
        "calibration_dir",
        "server",
    ]


def test_no_file_names_a_folder_of_the_machine_it_was_written_on():
    machine = tuple("/" + folder + "/" for folder in ("work", "root"))
    for path in listed_files():
        if path.suffix in {".safetensors", ".png"} or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert not any(folder in text for folder in machine), relative(path)


def declared(*extras):
    """Distributions that pyproject.toml asks for, normalised as package indexes do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    wanted += [need for extra in extras for need in project["optional-dependencies"][extra]]
    return {canonicalize_name(Requirement(need).name) for need in wanted}


@pytest.mark.parametrize(
    ("packages", "extras"), [(("offload", "deployments"), ()), (("tests", "scripts"), ("dev",))]
)
def test_whatever_is_imported_is_a_declared_dependency(packages, extras):
    ours = {"offload", "deployments", "tests", "scripts"}
    homes = packages_distributions()
    for path in (path for package in packages for path in source_files(package)):
        for name in top_levels(path, late=True) - set(sys.stdlib_module_names) - ours:
            found = {canonicalize_name(home) for home in homes[name]}
            assert found & declared(*extras), f"{relative(path)}: {name}"


def test_modules_are_named_as_they_are_imported():
    assert module_name(ROOT / "offload/cards/base.py") == "offload.cards.base"
    assert module_name(ROOT / "offload/__init__.py") == "offload"
