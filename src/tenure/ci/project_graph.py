"""The project graph: folders with the folders that they depend on, declared in the pipeline or discovered from imports.

Laws:
1. A file belongs to the deepest project whose folder contains it. A project is reached if one of its files changed, or a project that it depends on
   is reached. Cycles are allowed: reached is reached.
2. Discovery only adds dependencies and projects to the declared ones.
3. Deleted files take part in discovery, so that whoever still imports them is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tenure.ci.python_imports import (
    Imports,
    find_distributions,
    find_package_folders,
    find_top_packages,
    module_names,
    resolve_relative,
)
from tenure.errors import TenureError
from tenure.limits import PIPELINE_PROJECTS_MAX


class ReachedProject(msgspec.Struct, frozen=True):
    project: str
    file: str = ""
    """The changed file, if the project itself changed."""
    by: str = ""
    """The reached project that this one depends on, if it did not change itself."""
    unknown: str = ""
    """A file whose imports are unknown, if nothing else reached the project."""


class ProjectGraph:
    def __init__(
        self, depends_on: Mapping[str, Iterable[str]], unknown: Mapping[str, str] | None = None
    ) -> None:
        self.depends_on = {project: tuple(dict.fromkeys(needs)) for project, needs in depends_on.items()}
        self._unknown = dict(unknown or {})
        """Project -> a file of it whose imports are unknown."""
        self._dependents: dict[str, list[str]] = {}
        for project, needs in self.depends_on.items():
            for need in needs:
                self._dependents.setdefault(need, []).append(project)

    def owner(self, path: str) -> str | None:
        """The project that a file belongs to."""
        return find_owner(path, self.depends_on)

    def reach(self, changed: Iterable[str]) -> dict[str, ReachedProject]:
        """The projects that changed files reach, each with the reason."""
        reached: dict[str, ReachedProject] = {}
        for path in changed:
            project = self.owner(path)
            if project is not None and project not in reached:
                reached[project] = ReachedProject(project, file=path)
        if reached:
            for project, path in self._unknown.items():
                reached.setdefault(project, ReachedProject(project, unknown=path))
        left = list(reached)
        for project in left:  # it grows while it is read: breadth first
            for dependent in self._dependents.get(project, ()):
                if dependent not in reached:
                    reached[dependent] = ReachedProject(dependent, by=project)
                    left.append(dependent)
        return reached

    def explain(self, reached: Mapping[str, ReachedProject], project: str) -> str:
        """Why a project is reached, as a sentence."""
        here = reached[project]
        if here.file:
            return f"{project} changed: {here.file}"
        if here.unknown:
            return f"the imports of {here.unknown} cannot be read, so {project} may depend on what changed"
        way: list[str] = []
        while here.by:
            way.append(here.by)
            here = reached[here.by]
        source = way.pop()
        through = f" (through {', '.join(way[:5])}{', ...' if len(way) > 5 else ''})" if way else ""
        what = "which changed" if here.file else "whose imports cannot be read"
        return f"{project} depends on {source}, {what}{f': {here.file}' if here.file else ''}{through}"


def find_owner(path: str, projects: Mapping[str, object]) -> str | None:
    """The deepest of the projects whose folder contains a path."""
    folder = path
    while folder:
        if folder in projects:
            return folder
        folder = folder.rpartition("/")[0]
    return "." if "." in projects else None


def discover_python_projects(declared: Iterable[str], paths: Iterable[str]) -> list[str]:
    """The projects of a repository with Python: the declared ones, folders with packaging files, and packages outside of these."""
    paths = list(paths)
    projects = dict.fromkeys(declared)
    projects.update(dict.fromkeys(sorted(find_distributions(paths))))
    packages = find_package_folders(path for path in paths if path.endswith(".py"))
    for folder in sorted(find_top_packages(packages)):
        if find_owner(folder, projects) in (None, "."):
            projects[folder] = None
    if len(projects) > PIPELINE_PROJECTS_MAX:
        raise TenureError(
            "PIPELINE_INVALID",
            f"discovery found {len(projects)} projects; at most {PIPELINE_PROJECTS_MAX} are allowed: declare `projects` instead",
        )
    return list(projects)


def build_python_graph(
    declared: Mapping[str, Iterable[str]],
    files: Mapping[str, str],
    deleted: Iterable[str],
    imports: Mapping[str, Imports | None],
) -> ProjectGraph:
    """The declared graph with what imports add. `files` maps each Python file and each packaging file to the id of its blob."""
    deleted = [path for path in deleted if path.endswith(".py")]
    every = [*files, *deleted]
    projects = dict.fromkeys(discover_python_projects(declared, every))
    packages = find_package_folders(every)
    owner_of = {
        path: owner for path in every if path.endswith(".py") and (owner := find_owner(path, projects))
    }
    providers: dict[str, set[str]] = {}
    for path, owner in owner_of.items():
        for name in module_names(path, owner, packages):
            providers.setdefault(name, set()).add(owner)
    graph: dict[str, dict[str, None]] = {
        project: dict.fromkeys(declared.get(project, ())) for project in projects
    }
    unknown: dict[str, str] = {}
    for path, blob in files.items():
        owner = owner_of.get(path)
        if owner is None:
            continue
        names = imports.get(blob)
        if names is None:
            unknown.setdefault(owner, path)
            continue
        for name in names:
            absolute = resolve_relative(name, path, packages) if name.startswith(".") else name
            for provider in find_provider(absolute, providers):
                if provider != owner:
                    graph[owner][provider] = None
    return ProjectGraph(graph, unknown)


def find_provider(name: str, providers: Mapping[str, set[str]]) -> Iterable[str]:
    """The projects that have a module, or the nearest package above it."""
    while name:
        found = providers.get(name)
        if found is not None:
            return sorted(found)
        name = name.rpartition(".")[0]
    return ()
