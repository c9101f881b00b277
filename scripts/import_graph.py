"""Which module imports which, read from the source without running it.

Only imports that happen when a module is imported count: those in functions and under
``if TYPE_CHECKING`` do not. It knows nothing of which directions are allowed.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name: ``from module import name``, or ``import module`` with an empty name."""

    module: str
    name: str = ""


def source_files(package: str) -> list[Path]:
    """Every Python file of a package, in a stable order."""
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    """``offload/cards/base.py`` -> ``offload.cards.base``; a package's door is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, late: bool = False) -> set[Import]:
    """Imports at module level, with ``late`` those inside functions too."""
    found: set[Import] = set()
    for node in _nodes(ast.parse(path.read_text()), late=late):
        if isinstance(node, ast.Import):
            found |= {Import(module=alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative
                package = module_name(path).split(".")
                keep = len(package) - node.level + (path.name == "__init__.py")
                base = ".".join([*package[:keep], *([base] if base else [])])
            found |= {Import(module=base, name=alias.name) for alias in node.names}
    return found


def _nodes(tree: ast.AST, *, late: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not late:
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (node for stmt in child.orelse for node in (stmt, *_nodes(stmt, late=late)))
            continue
        yield child
        yield from _nodes(child, late=late)


def project_modules() -> dict[str, Path]:
    """Module name -> file, of the two packages that are installed."""
    files = [path for package in ("offload", "deployments") for path in source_files(package)]
    return {module_name(path): path for path in files}


def targets(found: Iterable[Import], modules: Iterable[str]) -> set[str]:
    """The project modules that the imports name: ``from a import b`` is ``a.b`` if that is one."""
    known = set(modules)
    named = set()
    for item in found:
        full = f"{item.module}.{item.name}" if item.name else item.module
        named.add(full if full in known else item.module)
    return named & known


def closure(start: Iterable[str], *, late: bool = False) -> set[str]:
    """The modules reached from ``start`` by project imports, ``start`` among them."""
    modules = project_modules()
    reached: set[str] = set()
    waiting = [name for name in start if name in modules]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += targets(imports_of(modules[name], late=late), modules)
    return reached
