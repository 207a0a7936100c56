"""The tables of docs/models.md: vendors, options and events, made of their records and classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from support.events_page import field_texts

from corral._docs.error_pages import first_line, from_docstring
from corral._inference.request import RequestOptions, RequestSettings
from corral._models import registry
from corral._models.spec import Provider
from corral.model_types import StreamEvent

END = "<!-- end -->"


def with_models(page: str) -> str:
    """The page with its three tables, each between two marks."""
    for name, table in (("vendors", _vendors), ("options", _options), ("events", _events)):
        begin = f"<!-- made of the {name} of models -->"
        before, _, rest = page.partition(begin)
        made = "\n".join(table())
        page = f"{before}{begin}\n\n{made}\n\n{END}{rest.partition(END)[2]}"
    return page


def _vendors() -> Iterator[str]:
    yield from ("| vendor | | API | key | base URL |", "|---|---|---|---|---|")
    for each in sorted(registry.all_providers(), key=lambda each: (each.wire.name, each.name)):
        url = " or ".join(f"`{name}`" for name in each.base_url_env)
        yield f"| `{each.name}` | {each.title} | {each.wire.name} | {_key(each)} | {url} |"


def _key(provider: Provider) -> str:
    if provider.credentials:
        variables = ", ".join(f"`{name}`" for name in provider.extra_env.values())
        return f"{provider.credentials}'s own credentials (extra `{provider.name}`), {variables}"
    key = " or ".join(f"`{name}`" for name in provider.key_env)
    return f"{key}, if the server needs one" if provider.key_optional else key


def _options() -> Iterator[str]:
    yield from ("| option | |", "|---|---|")
    texts = field_texts(RequestOptions) | field_texts(RequestSettings)
    for name in RequestOptions.__annotations__:
        yield f"| `{name}` | {' '.join(from_docstring(texts[name]).split())} |"


def _events() -> Iterator[str]:
    yield from ("| `type` | fields | |", "|---|---|---|")
    for kind in get_args(StreamEvent):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        yield f"| `{kind.__struct_config__.tag}` | {fields} | {first_line(kind)} |"
