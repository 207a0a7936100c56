"""Every public name has a docstring, and what users call or build has an example that compiles."""

from __future__ import annotations

import ast
import inspect
import textwrap
from importlib import import_module
from types import ModuleType

MODULES = [
    "corral",
    "corral.agents",
    "corral.models",
    "corral.pipelines",
    "corral._pipelines.events",  # public as ``pipelines.events``
    "corral.providers",
    "corral.testing",
    "corral.errors",
    "corral.events",
]
WITHOUT_EXAMPLE = {
    "corral.agents": "an example is in docs/adding-agents.md",
    "corral.errors": "an example is in CorralError",
    "corral.events": "events are read; corral.Turn has an example",
    "corral._pipelines.events": "events are read",
}
"""Modules whose classes are not called by users → why."""
RETURNED = {
    "corral": "AgentSession AskedQuestion BatchReport BatchResult Cost DeniedCall FileChanged"
    " ToolRequest Usage",
    "corral.models": "Cost Failed Fallback Finish FinishReason NoObjectError Provider ProviderEvent"
    " RateLimit RedactedThinking Response Start Step StepFinish Text TextDelta TextEnd TextStart"
    " Thinking ThinkingDelta ThinkingEnd ThinkingStart ToolCall ToolCallDelta ToolCallEnd"
    " ToolCallStart ToolDone Traits Usage Wire",
    "corral.pipelines": "Choice DotError Edge Finding LintError Node NodeContext NodeResources"
    " Question",
    "corral.providers": "ProviderError ProviderMetadata ProviderResult",
    "corral.testing": "AgentCassette AttackReport HostileRepository Message Report Request"
    " ToolResult",
}
"""Classes that users get and do not make, or that only adding a vendor needs."""


def public_names() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name in MODULES:
        module = import_module(name)
        listed: list[str] = getattr(module, "__all__", None) or [
            each
            for each, value in vars(module).items()
            if not each.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == name
        ]
        found += [(name, each) for each in listed]
    return found


NAMES = public_names()


def documented(value: object) -> str:
    """The docstring of the object itself, not of its base class."""
    doc = vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", None)
    return doc if isinstance(doc, str) else ""


def examples(doc: str) -> list[str]:
    """The indented blocks after a line that ends with ``::``."""
    lines = inspect.cleandoc(doc).split("\n")
    found: list[str] = []
    for number, line in enumerate(lines):
        if not line.rstrip().endswith("::"):
            continue
        block: list[str] = []
        for after in lines[number + 1 :]:
            if after and not after.startswith("    "):
                break
            block.append(after)
        found.append(textwrap.dedent("\n".join(block)).strip())
    return [each for each in found if each]


def uses_of_public_modules(example: str) -> list[tuple[str, str]]:
    """``corral.run``, ``models.generate`` and so on in the code, as module and name."""
    modules = {"corral": "corral", "models": "corral.models", "pipelines": "corral.pipelines"}
    return [
        (modules[node.value.id], node.attr)
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    ]


def is_code(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def test_every_public_name_has_its_own_docstring() -> None:
    assert len(NAMES) > 200
    missing: list[str] = []
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        is_documented = bool(documented(value).strip())
        if (is_code(value) or isinstance(value, ModuleType)) and not is_documented:
            missing.append(f"{module}.{name}")
    assert missing == []


def test_what_users_call_has_an_example_that_compiles() -> None:
    missing: list[str] = []
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        if not is_code(value):
            continue
        found = examples(documented(value))
        for each in found:
            compile(each, f"{module}.{name}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for used, attribute in uses_of_public_modules(each):
                assert hasattr(import_module(used), attribute), f"{used}.{attribute}"
        is_called = module not in WITHOUT_EXAMPLE and name not in RETURNED.get(module, "").split()
        if is_called and not found:
            missing.append(f"{module}.{name}")
    assert missing == []


def test_the_lists_of_exceptions_have_only_public_classes() -> None:
    for module, names in RETURNED.items():
        for name in names.split():
            assert (module, name) in NAMES
            assert inspect.isclass(getattr(import_module(module), name))
