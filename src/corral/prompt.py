"""A prompt in parts: titled sections, typed parameters, tools and a typed answer.

::

    review = Prompt(
        "Review the {language} code here.",
        sections=[Section("Rules", "Be {style}."), Section("Ticket", "…", tools=[read_ticket])],
        parameters={"language": str, "style": str},
        output=Review,
    )
    review.with_(language="Python", style="strict").without("Ticket").render()

A prompt never changes: ``with_``, ``without`` and ``including`` give another. What is
wrong with its text is told when it is made, what is wrong with a value when it is
given, what is missing when it is rendered; always as ``PromptError``. A value is put
in as it stands: braces in it mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import force_setattr, replace

from corral.errors import PromptError

TOP = 2
"""The level of the first headings; the prompt as a whole is the ``#`` that nobody writes."""
DEEPEST = 6
"""Markdown has no heading below it."""

_BRACES = r"\{\{|\}\}|\{([^{}]*)\}|[{}]"


class Section(msgspec.Struct, frozen=True):
    """A titled part of a prompt, with the parts and the tools that belong to it.

    One that is not ``enabled`` is left out, with its tools and all sections below it.
    """

    title: str
    text: str = ""
    sections: Sequence[Section] = ()
    tools: Sequence[Callable[..., Any]] = ()
    enabled: bool = True

    def __post_init__(self) -> None:
        if not self.title.strip() or "\n" in self.title:
            raise PromptError(f"a section's title must be one line of text, got: {self.title!r}")
        force_setattr(self, "sections", tuple(self.sections))
        force_setattr(self, "tools", tuple(self.tools))


class Prompt(msgspec.Struct, frozen=True):
    """Text with ``{parameters}``, and sections that become Markdown headings.

    ``parameters`` maps each name to its type; a brace of the text itself is doubled.
    ``output`` is the type of the answer. ``corral.run`` takes a prompt in place of a
    string; ``str(prompt)`` is its text.
    """

    text: str
    sections: Sequence[Section] = ()
    parameters: Mapping[str, Any] = {}
    output: Any = None
    values: Mapping[str, Any] = {}
    """What the parameters are, as far as it is known."""

    def __post_init__(self) -> None:
        force_setattr(self, "sections", tuple(self.sections))
        force_setattr(self, "parameters", dict(self.parameters))
        force_setattr(self, "values", dict(self.values))
        titles: set[str] = set()
        for section in _all(self.sections):
            if section.title in titles:
                raise PromptError(
                    f"two sections are called {section.title!r}",
                    hint="They are switched on and off by their titles.",
                )
            titles.add(section.title)
        for where, text in (("the text", self.text), *_texts(_all(self.sections))):
            for name in _names(text, where):
                if name not in self.parameters:
                    advice = _near(name, self.parameters)
                    raise PromptError(
                        f"{{{name}}} in {where} is no parameter: {advice}",
                        hint="Declare it in parameters=, or double the braces to mean them.",
                    )
        _check_values(self.values, self.parameters)

    def with_(self, **values: Any) -> Prompt:
        """The same with these parameters filled in; earlier values of theirs are replaced."""
        return replace(self, values={**self.values, **values})

    def without(self, *titles: str) -> Prompt:
        """The same with these sections off."""
        return self._switched(titles, enabled=False)

    def including(self, *titles: str) -> Prompt:
        """The same with these sections on. What stands above them is not touched."""
        return self._switched(titles, enabled=True)

    @property
    def tools(self) -> tuple[Callable[..., Any], ...]:
        """The tools of the sections that are on, each once."""
        found: list[Callable[..., Any]] = []
        for section in _enabled(self.sections):
            found += [tool for tool in section.tools if tool not in found]
        return tuple(found)

    def render(self) -> str:
        """The whole as Markdown. Only what is rendered needs its parameters."""
        needed = [("the text", self.text), *_texts(_enabled(self.sections))]
        names = dict.fromkeys(name for where, text in needed for name in _names(text, where))
        missing = [name for name in names if name not in self.values]
        if missing:
            raise PromptError(
                f"the prompt misses {_listed(missing)}",
                hint=f"Fill in: prompt.with_({', '.join(f'{name}=…' for name in missing)}).",
            )
        parts = [_filled(self.text, self.values), *_rendered(self.sections, self.values, TOP)]
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.render()

    def _switched(self, titles: Sequence[str], *, enabled: bool) -> Prompt:
        known = [section.title for section in _all(self.sections)]
        for title in titles:
            if title not in known:
                raise PromptError(f"there is no section {title!r}: {_near(title, known)}")
        return replace(self, sections=_set(self.sections, titles, enabled=enabled))


def _set(
    sections: Iterable[Section], titles: Collection[str], *, enabled: bool
) -> tuple[Section, ...]:
    return tuple(
        replace(
            section,
            sections=_set(section.sections, titles, enabled=enabled),
            enabled=enabled if section.title in titles else section.enabled,
        )
        for section in sections
    )


def _all(sections: Iterable[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from _all(section.sections)


def _enabled(sections: Iterable[Section]) -> Iterator[Section]:
    for section in sections:
        if section.enabled:
            yield section
            yield from _enabled(section.sections)


def _texts(sections: Iterable[Section]) -> Iterator[tuple[str, str]]:
    """Each text that may name parameters, and where it stands."""
    for section in sections:
        yield f"the title {section.title!r}", section.title
        yield f"section {section.title!r}", section.text


def _names(text: str, where: str) -> Iterator[str]:
    for found in re.finditer(_BRACES, text):
        if found[0] in ("{{", "}}"):
            continue
        name = found[1]
        if name is None or not name.isidentifier():
            raise PromptError(
                f"{found[0]!r} in {where} is no parameter",
                hint="A brace that means itself is doubled: {{ or }}.",
            )
        yield name


def _filled(text: str, values: Mapping[str, Any]) -> str:
    def put(found: re.Match[str]) -> str:
        return found[0][0] if found[1] is None else _shown(values[found[1]])

    return re.sub(_BRACES, put, text).strip()


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(f"- {item}" for item in cast("Sequence[object]", value))
    return str(value)


def _rendered(sections: Iterable[Section], values: Mapping[str, Any], level: int) -> Iterator[str]:
    for section in sections:
        if section.enabled:
            title = " ".join(_filled(section.title, values).split())
            yield f"{'#' * min(level, DEEPEST)} {title}"
            yield _filled(section.text, values)
            yield from _rendered(section.sections, values, level + 1)


def _check_values(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    unknown = [name for name in values if name not in parameters]
    if unknown:
        advice = "; ".join(f"{name!r}: {_near(name, parameters)}" for name in unknown)
        raise PromptError(f"the prompt has no parameter {advice}")
    wrong = [
        f"{name!r} must be {_type_name(kind)}, got: {type(values[name]).__name__}"
        for name, kind in parameters.items()
        if name in values and not _is(values[name], kind)
    ]
    if wrong:
        raise PromptError(f"wrong parameters of the prompt: {'; '.join(wrong)}")


def _is(value: object, kind: Any) -> bool:
    if kind is Any:
        return True
    if isinstance(value, bool) and kind in (int, float):
        return False  # as everywhere in Python, and never what is meant
    if kind is float:
        return isinstance(value, int | float)
    if isinstance(kind, type) and not hasattr(kind, "__origin__"):
        return isinstance(value, kind)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    except TypeError as error:
        raise PromptError(f"{_type_name(kind)} cannot be the type of a parameter") from error
    return True


def _type_name(kind: Any) -> str:
    plain = isinstance(kind, type) and not hasattr(kind, "__origin__")
    return kind.__name__ if plain else str(kind).replace("typing.", "")


def _near(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    names = [*known]
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names) or 'none'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
