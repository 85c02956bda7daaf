"""Imports point up the list of rooms in CONTRIBUTING.md, and none of them runs in a circle."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rooms():
    """Return the place of each room in the list, by the name of its module or folder."""
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Rooms")[1].split("##")[0]
    lines = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {
        f"jsparse.{name.rstrip('/')}": place
        for place, cell in enumerate(lines)
        for name in re.findall(r"`([^`]+)`", cell)
    }


def modules():
    """Return the files of the package by the names of their modules."""
    files = {}
    for path in (ROOT / "jsparse").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(module, path, known):
    """Return the modules of the package that a module names, wherever it imports them."""
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(base + ([node.module] if node.module else []))
            within = [f"{base}.{alias.name}" for alias in node.names]
            names.update(name if name in known else base for name in within)
    return {name for name in names & set(known) if name != module}


@functools.cache
def imports():
    """Return the modules that each module imports."""
    known = modules()
    return {module: imported(module, path, known) for module, path in known.items()}


def room_of(module, places):
    """Return the place of the room that holds a module; `None` for the package itself."""
    return places.get(".".join(module.split(".")[:2]))


def test_imports_point_up_the_list_of_rooms():
    places = rooms()
    inside = {
        m: names for m, names in imports().items() if m not in ("jsparse", "jsparse.__main__")
    }
    assert [m for m in inside if room_of(m, places) is None] == []
    climbs = [
        f"{module} imports {name}"
        for module, names in inside.items()
        for name in sorted(names)
        if name != "jsparse" and room_of(name, places) > room_of(module, places)
    ]
    assert climbs == []


def test_no_import_runs_in_a_circle():
    try:
        list(graphlib.TopologicalSorter(imports()).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
