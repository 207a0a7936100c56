"""Prompts with titled sections, typed parameters, tools and a typed answer.

::

    review = Prompt(
        "Review the {language} code here.",
        sections=[Section("Rules", "Be {style}."), Section("Ticket", "…", tools=[read_ticket])],
        parameters={"language": str, "style": str},
        output=Review,
    )
    review.with_(language="Python", style="strict").without("Ticket").render()

A prompt is immutable: ``with_``, ``without`` and ``including`` return a new one. ``PromptError`` is
raised for an invalid text when the prompt is made, for a wrong value when it is set, and for a
missing value when the prompt is rendered. Values are inserted unchanged: braces in them have no
meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeGuard

import msgspec
from msgspec.structs import force_setattr, replace

from corral._core.lookup import nearest
from corral.errors import PromptError
from corral.values import Output, OutputT_co, convert_to, is_sequence

__all__ = [
    "Prompt", "Section", "output_type",
]  # fmt: skip

TOP_LEVEL = 2
"""The level of the top headings."""
MAX_LEVEL = 6
"""The lowest heading level of Markdown."""

_BRACES = r"\{\{|\}\}|\{([^{}]*)\}|[{}]"


class Section(msgspec.Struct, frozen=True):
    """A titled part of a prompt, with its subsections and tools.

    A section that is not ``enabled`` is left out, with its tools and subsections.

    ::

        corral.Section("Security", "Report missing checks of input.", enabled=False)
    """

    title: str
    text: str = ""
    sections: Sequence[Section] = ()
    tools: Sequence[Callable[..., object]] = ()
    enabled: bool = True

    def __post_init__(self) -> None:
        if not self.title.strip() or "\n" in self.title:
            raise PromptError(f"a section's title must be one line of text, got: {self.title!r}")
        force_setattr(self, "sections", tuple(self.sections))
        force_setattr(self, "tools", tuple(self.tools))


class Prompt(msgspec.Struct, Generic[OutputT_co], frozen=True):
    """Text with ``{parameters}``, and sections that become Markdown headings.

    ``parameters`` maps each name to its type. A literal brace is doubled. ``output`` is the type
    of the answer: ``Prompt[Review]`` returns a ``Result[Review]``. ``corral.run`` accepts a prompt
    instead of a string; ``str(prompt)`` is its text.

    ::

        prompt = corral.Prompt(
            "Review {file}.",
            sections=[corral.Section("Style", "Report unclear names.")],
            parameters={"file": str},
        )
        corral.run_sync("gemini-cli", prompt.with_(file="main.py"))
    """

    text: str
    sections: Sequence[Section] = ()
    parameters: Mapping[str, object] = {}
    output: object = None
    values: Mapping[str, object] = {}
    """The values of the parameters that are set."""

    if TYPE_CHECKING:

        def __init__(
            self,
            text: str,
            *,
            sections: Sequence[Section] = (),
            parameters: Mapping[str, object] = {},
            output: Output[OutputT_co] | None = None,
            values: Mapping[str, object] = {},
        ) -> None: ...

    def __post_init__(self) -> None:
        force_setattr(self, "sections", tuple(self.sections))
        force_setattr(self, "parameters", dict(self.parameters))
        force_setattr(self, "values", dict(self.values))
        titles: set[str] = set()
        for section in _walk(self.sections):
            if section.title in titles:
                raise PromptError(
                    f"two sections have the title {section.title!r}",
                    hint="Titles must be unique: sections are enabled and disabled by title.",
                )
            titles.add(section.title)
        for where, text in (("the text", self.text), *_texts(_walk(self.sections))):
            for name in _parameter_names(text, where):
                if name not in self.parameters:
                    advice = _suggest(name, self.parameters)
                    raise PromptError(
                        f"{{{name}}} in {where} is not a parameter: {advice}",
                        hint="Declare it in parameters=, or double the braces.",
                    )
        unknown = [name for name in self.values if name not in self.parameters]
        if unknown:
            advice = "; ".join(f"{name!r}: {_suggest(name, self.parameters)}" for name in unknown)
            raise PromptError(f"the prompt has no parameter {advice}")
        wrong = [
            f"{name!r} must be {_type_name(kind)}, got: {type(self.values[name]).__name__}"
            for name, kind in self.parameters.items()
            if name in self.values and not _is_instance(self.values[name], kind)
        ]
        if wrong:
            raise PromptError(f"wrong prompt parameters: {'; '.join(wrong)}")

    def with_(self, **values: object) -> Prompt[OutputT_co]:
        """The same with these parameters set; earlier values are replaced."""
        return replace(self, values={**self.values, **values})

    def without(self, *titles: str) -> Prompt[OutputT_co]:
        """The same with these sections disabled."""
        return self._with_enabled(titles, enabled=False)

    def including(self, *titles: str) -> Prompt[OutputT_co]:
        """The same with these sections enabled. Their parent sections do not change."""
        return self._with_enabled(titles, enabled=True)

    @property
    def tools(self) -> tuple[Callable[..., object], ...]:
        """The tools of the enabled sections, each once."""
        found: list[Callable[..., object]] = []
        for section in _walk(self.sections, enabled=True):
            found += [tool for tool in section.tools if tool not in found]
        return tuple(found)

    def render(self) -> str:
        """The prompt as Markdown. Only enabled sections need their parameters."""
        needed = [("the text", self.text), *_texts(_walk(self.sections, enabled=True))]
        names = dict.fromkeys(
            name for where, text in needed for name in _parameter_names(text, where)
        )
        missing = [name for name in names if name not in self.values]
        if missing:
            raise PromptError(
                f"the prompt has no value for {', '.join(map(repr, missing))}",
                hint=f"Set it: prompt.with_({', '.join(f'{name}=…' for name in missing)}).",
            )
        parts = [
            _fill(self.text, self.values),
            *_render_sections(self.sections, self.values, TOP_LEVEL),
        ]
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.render()

    def _with_enabled(self, titles: Sequence[str], *, enabled: bool) -> Prompt[OutputT_co]:
        known = [section.title for section in _walk(self.sections)]
        for title in titles:
            if title not in known:
                raise PromptError(f"there is no section {title!r}: {_suggest(title, known)}")
        return replace(self, sections=_set_enabled(self.sections, titles, enabled=enabled))


def output_type(prompt: str | Prompt[Any] | None, output: object) -> object:
    """The ``output`` of a call, or that of its prompt."""
    return prompt.output if output is None and isinstance(prompt, Prompt) else output


def check_prompt(prompt: str, limit: int) -> str:
    """The prompt, or ``PromptError`` where it is empty, unsendable or over ``limit`` bytes."""
    if not isinstance(prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PromptError(f"the prompt must be text, got: {type(prompt).__name__}")
    if not prompt.strip():
        raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
    if "\0" in prompt:
        raise PromptError("the prompt contains a NUL character")
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt cannot be written as UTF-8: {error}") from error
    if size > limit:
        raise PromptError(
            f"the prompt has {size:,} bytes, over the {limit:,} that this agent accepts",
            hint="Put the material into files in the working directory and name these instead.",
        )
    return prompt


def _set_enabled(
    sections: Iterable[Section], titles: Collection[str], *, enabled: bool
) -> tuple[Section, ...]:
    return tuple(
        replace(
            section,
            sections=_set_enabled(section.sections, titles, enabled=enabled),
            enabled=enabled if section.title in titles else section.enabled,
        )
        for section in sections
    )


def _walk(sections: Iterable[Section], *, enabled: bool = False) -> Iterator[Section]:
    """The sections and all below them; with ``enabled`` only those that are."""
    for section in sections:
        if section.enabled or not enabled:
            yield section
            yield from _walk(section.sections, enabled=enabled)


def _texts(sections: Iterable[Section]) -> Iterator[tuple[str, str]]:
    """Each text that may contain parameters, and its location."""
    for section in sections:
        yield f"the title {section.title!r}", section.title
        yield f"section {section.title!r}", section.text


def _parameter_names(text: str, where: str) -> Iterator[str]:
    for found in re.finditer(_BRACES, text):
        if found[0] in ("{{", "}}"):
            continue
        name = found[1]
        if name is None or not name.isidentifier():
            raise PromptError(
                f"{found[0]!r} in {where} is not a parameter",
                hint="Double a literal brace: {{ or }}.",
            )
        yield name


def _fill(text: str, values: Mapping[str, object]) -> str:
    def put(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        value = values[found[1]]
        return "\n".join(f"- {item}" for item in value) if is_sequence(value) else str(value)

    return re.sub(_BRACES, put, text).strip()


def _render_sections(
    sections: Iterable[Section], values: Mapping[str, object], level: int
) -> Iterator[str]:
    for section in sections:
        if section.enabled:
            title = " ".join(_fill(section.title, values).split())
            yield f"{'#' * min(level, MAX_LEVEL)} {title}"
            yield _fill(section.text, values)
            yield from _render_sections(section.sections, values, level + 1)


def _is_instance(value: object, kind: object) -> bool:
    if kind is Any:
        return True
    if isinstance(value, bool) and (kind is int or kind is float):
        return False  # bool is a subclass of int, but never meant here
    if kind is float:
        return isinstance(value, int | float)
    if _is_class(kind):
        return isinstance(value, kind)
    try:
        convert_to(value, kind)
    except msgspec.ValidationError:
        return False
    except TypeError as error:
        raise PromptError(f"{_type_name(kind)} cannot be the type of a parameter") from error
    return True


def _is_class(kind: object) -> TypeGuard[type]:
    """Whether this is a class, and not a generic type such as ``list[int]``."""
    return isinstance(kind, type) and not hasattr(kind, "__origin__")


def _type_name(kind: object) -> str:
    return kind.__name__ if _is_class(kind) else str(kind).replace("typing.", "")


def _suggest(name: str, known: Iterable[str]) -> str:
    names = [*known]
    return nearest(name, names, f"known: {', '.join(names) or 'none'}")
