"""What import-linter does not hold: no two modules import each other, not even late; unit tests have the rooms of pdctl."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pdctl

ROOT = Path(pdctl.__file__).parent
LOOSE = {
    "__init__.py": "all of these",
    "conftest.py": "all of these",
    "test_house.py": "all rooms",
    "test_variables.py": "all rooms",
    "test_pages.py": "docs/, README.md",
    "test_site.py": "docs/, .github/",
    "test_skill.py": "skills/",
    "test_deploy.py": "deploy/",
    "test_score.py": "benchmarks/",
    "test_engine_versions.py": "tests/engine/",
    "test_upstream_compared.py": "tests/engine/",
    "test_gpu.py": "tests/gpu/",
    "test_patience.py": "tests/support/",
}
"""Files of unit tests that test no one room, and what they test."""


def _modules() -> dict[str, Path]:
    names = {path.relative_to(ROOT.parent).with_suffix(""): path for path in ROOT.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in names.items()}


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run, wherever they stand."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from _imports(node)


def _graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        needs = graph.setdefault(name, set())
        for node in _imports(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                named = (f"{node.module}.{alias.name}" for alias in node.names)
                needs |= {one if one in modules else str(node.module) for one in named}
            else:
                needs |= {alias.name for alias in node.names}
        needs &= set(modules) - {name}
    return graph


def test_no_two_modules_import_each_other() -> None:
    modules = _modules()
    assert len(modules) > 300
    try:
        TopologicalSorter(_graph(modules)).prepare()
    except CycleError as error:
        pytest.fail(" > ".join(error.args[1]))


def test_unit_tests_have_the_rooms_of_pdctl() -> None:
    here = Path(__file__).parent
    assert {path.parent.name for path in here.glob("*/*.py")} == {path.parent.name for path in ROOT.glob("*/*.py")}
    assert {path.name for path in here.glob("*.py")} == LOOSE.keys()
