"""No module and no folder of the core, or of what drives it, imports itself by way of others.

Imports for type checkers alone are counted: at run time such a circle is not there, for a reader
it is.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tieline_server

ROOT = Path(str(tieline_server.__file__)).parent
PACKAGES = ["core", "runtime"]

Graph = Mapping[str, set[str]]


def imports_of(module: str, source: str, modules: set[str]) -> set[str]:
    """The modules of the package that this one imports, wherever the statement stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports by its own place"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return (found & modules) - {module}


def graph_of(package: str) -> Graph:
    """Module -> the modules of the same package that it imports."""
    sources = {
        ".".join(["tieline_server", *path.relative_to(ROOT).with_suffix("").parts]): path
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__init__.py"
    }
    return {
        module: imports_of(module, path.read_text(), set(sources))
        for module, path in sources.items()
    }


def siblings(graph: Graph) -> Iterator[Graph]:
    """For each package in the graph, what its modules and folders import of each other."""
    parents = {module.rsplit(".", 1)[0] for module in graph}
    for parent in sorted({*parents, *(parent.rsplit(".", 1)[0] for parent in parents)}):
        within = f"{parent}."

        def child(module: str, within: str = within) -> str:
            return within + module.removeprefix(within).split(".")[0]

        children: dict[str, set[str]] = {}
        for module, imported in graph.items():
            if module.startswith(within):
                own = child(module)
                others = {child(each) for each in imported if each.startswith(within)}
                children.setdefault(own, set()).update(others - {own})
        yield children


def cycle(graph: Graph) -> list[str]:
    """One circle of the graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    graph = graph_of(package)
    assert len(graph) > 5
    assert cycle(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_imports_itself_by_way_of_others(package: str) -> None:
    assert [found for each in siblings(graph_of(package)) if (found := cycle(each))] == []


def test_an_import_for_type_checkers_alone_counts() -> None:
    source = "if TYPE_CHECKING:\n    from a.b.two import Two\n"
    assert imports_of("a.b.one", source, {"a.b.one", "a.b.two"}) == {"a.b.two"}
    assert imports_of("a.b.one", "from a.b import two", {"a.b.one", "a.b.two"}) == {"a.b.two"}


def test_folders_are_in_a_circle_where_their_modules_are_not() -> None:
    graph = {"a.x.one": {"a.y.two"}, "a.y.two": set[str](), "a.y.three": {"a.x.four"}}
    graph["a.x.four"] = set()
    assert cycle(graph) == []
    assert any(cycle(each) for each in siblings(graph))
