"""The reference of the Python API: a page for each public module, which griffe reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import griffe

from corral._docs.error_pages import from_docstring

MODULES = (
    "corral",
    "corral.errors",
    "corral.events",
    "corral.models",
    "corral.pipelines",
    "corral.live",
    "corral.policy",
    "corral.review",
    "corral.serve",
    "corral.testing",
    "corral.agents",
    "corral.export",
    "corral.providers",
    "corral.integrations.harbor",
    "corral.integrations.inspect_ai",
)
"""In the order of the navigation. Names of ``corral`` that are modules have a page of their own."""


def pages(source: Path) -> Iterator[tuple[str, str]]:
    """The name and the Markdown text of each page."""
    package = griffe.load("corral", search_paths=[str(source)], allow_inspection=False)
    for name in MODULES:
        module = package if name == "corral" else package[name.removeprefix("corral.")]
        yield name, _page(package, module)


def public_names(module: griffe.Module | griffe.Alias) -> list[str]:
    """The public names of a module: those of its table of lazily loaded names, of ``__all__``, or
    all that it defines."""
    homes = module.members.get("_HOMES")
    if isinstance(homes, griffe.Attribute):
        table: dict[str, str] = ast.literal_eval(str(homes.value))
        # A package with a dot at its end has modules, which have pages of their own.
        return sorted(n for home, names in table.items() if home[-1] != "." for n in names.split())
    if module.exports:
        return sorted(str(name) for name in module.exports)
    return sorted(
        name
        for name, member in module.members.items()
        if name[0] != "_" and not member.is_alias and not member.is_module
    )


def _page(package: griffe.Module, module: griffe.Module | griffe.Alias) -> str:
    parts = [f"# {module.path}", _docstring(module)]
    for name in public_names(module):
        parts.append(_entry(_resolved(package, module, name), name))
    return "\n\n".join(filter(None, parts)) + "\n"


def _resolved(
    package: griffe.Module, module: griffe.Module | griffe.Alias, name: str
) -> griffe.Object | None:
    """The object behind a public name: where the table of lazily loaded names says that it is."""
    member = module.members.get(name)
    homes = module.members.get("_HOMES")
    if isinstance(homes, griffe.Attribute):
        table: dict[str, str] = ast.literal_eval(str(homes.value))
        home = next(home for home, names in table.items() if name in names.split())
        member = package[f"{home.removeprefix('corral').removeprefix('.')}.{name}".lstrip(".")]
    if member is None:
        return None
    found = member.final_target if isinstance(member, griffe.Alias) else member
    return found if isinstance(found, griffe.Object) else None


def _entry(found: griffe.Object | None, name: str) -> str:
    if found is None:
        return f"## {name}"
    parts = [f"## {name}"]
    if isinstance(found, griffe.Function):
        parts += [f"```python\n{_signature(found, name)}\n```", _docstring(found)]
    elif isinstance(found, griffe.Class):
        bases = ", ".join(str(base) for base in found.bases)
        parts += [f"```python\nclass {name}({bases})\n```", _docstring(found)]
        parts += _members(found)
    else:
        value = getattr(found, "value", None)
        text = "" if value is None else f" = {value}"
        parts += [f"```python\n{name}{text}\n```" if len(text) < 2_000 else "", _docstring(found)]
    return "\n\n".join(filter(None, parts))


def _members(found: griffe.Class) -> Iterator[str]:
    """The public attributes and methods of a class, with what its public bases define."""
    members = dict(found.members)
    for name, member in members.items():
        if name[0] == "_" or member.is_alias:
            continue
        if isinstance(member, griffe.Function):
            shown = f"```python\n{_signature(member, name)}\n```"
            text = _docstring(member)
            yield f"### {found.name}.{name}\n\n{shown}" + (f"\n\n{text}" if text else "")
        elif isinstance(member, griffe.Attribute):
            kind = "" if member.annotation is None else f": {member.annotation}"
            default = "" if member.value is None else f" = {member.value}"
            text = _docstring(member)
            lead = f"- `{name}{kind}{default}`".replace("\n", " ")
            yield lead + (f"  \n  {text}".replace("\n\n", "\n\n  ") if text else "")


def _signature(function: griffe.Function, name: str) -> str:
    """One line, or a line for each parameter if that is too long."""
    words = "async def" if "async" in function.labels else "def"
    if "property" in function.labels:
        return f"{name}: {function.annotation}"
    parameters: list[str] = []
    star_seen = False
    for each in function.parameters:
        if each.name in ("self", "cls"):
            continue
        kind = each.kind
        if kind is griffe.ParameterKind.keyword_only and not star_seen:
            parameters.append("*")
            star_seen = True
        prefix = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "") if kind else ""  # fmt: skip
        star_seen = star_seen or prefix == "*"
        note = "" if each.annotation is None else f": {each.annotation}"
        is_rest = prefix != ""
        default = "" if each.default is None or is_rest else f" = {each.default}"
        parameters.append(f"{prefix}{each.name}{note}{default}")
    result = "" if function.returns is None else f" -> {function.returns}"
    line = f"{words} {name}({', '.join(parameters)}){result}"
    if len(line) <= 90:
        return line
    listed = "".join(f"    {each},\n" for each in parameters)
    return f"{words} {name}(\n{listed}){result}"


def _docstring(found: griffe.Object | griffe.Alias) -> str:
    return "" if found.docstring is None else from_docstring(found.docstring.value)
