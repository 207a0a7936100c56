"""Builds the documentation site: ``make docs``.

The pages are README.md, the folder docs/, SECURITY.md, CONTRIBUTING.md, CHANGELOG.md, and a
reference that is made of the code: Python names, errors, events. They are put into one
folder, in which links between them lead from page to page, and zensical makes the site of it. Its
configuration is a mkdocs.yml, which mkdocs reads too. A link or an anchor that leads nowhere is an
error.

``llms.txt`` lists the pages for language models, ``llms-full.txt`` has the text of all that people
write (https://llmstxt.org).
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import error_reference
import msgspec
import python_reference

from corral import events
from corral._protocol.schema import without_samples
from corral.result import Result

ROOT = Path(__file__).parents[2]
NAVIGATION: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Start": {
        "": ("index", "getting-started", "python", "glossary"),
        "Agents and models": (
            *("agents", "models", "sessions", "running", "tools", "costs", "limits"),
        ),
        "What an agent may do": ("policy", "protected-paths", "sandbox", "security"),
    },
    "Cookbook": {
        "": ("cookbook/index",),
        "Recipes": ("cookbook/",),
        "Many steps, many tasks": ("pipelines", "workflows", "batches", "merge", "scaling"),
        "Proof": ("verification", "scenarios", "compare", "review"),
        "In other programs": ("acp", "mcp-server", "serve", "skill", "integrations", "providers"),
        "Look at runs": ("view", "export"),
    },
    "Reference": {
        "": ("command-line", "configuration", "pipeline-reference"),
        "Events, results, errors": (
            *("events-and-results", "reference/schemas", "errors-and-exit-codes"),
        ),
        "Python": ("reference/python/",),
        "Errors": ("reference/errors/",),
    },
    "Internals": {
        "": ("performance", "reliability", "testing", "compatibility", "adding-agents"),
        "HTTP": ("http-api", "serve-api"),
        "Project": ("contributing", "changelog"),
    },
}
"""Tab -> section -> its pages; a folder stands for the pages in it that are not listed. How to do
something is in the cookbook, and so is a page of docs/ that has no place here."""
OTHER_PAGES = {"README.md": "index", "SECURITY.md": "security", "CONTRIBUTING.md": "contributing",
               "CHANGELOG.md": "changelog"}  # fmt: skip
Navigation = Mapping[str, Mapping[str, list[str]]]
FOR_MODELS = ("Start", "Cookbook")
"""The tabs whose pages are in ``llms-full.txt``."""


def main() -> None:
    """Build the site into a folder; its pages are written beside it."""
    target = Path(sys.argv[1]).resolve()
    pages = target / "pages"
    shutil.rmtree(target, ignore_errors=True)
    written = write_pages(pages)
    tabs = navigation(written)
    (target / "mkdocs.yml").write_text(json.dumps(configuration(tabs), indent=2), "utf-8")
    click.echo(f"{len(written)} pages; building ...")
    zensical = Path(sys.executable).with_name("zensical")
    command = [str(zensical), "build", "--strict", "-f", str(target / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=target)
    if done.returncode != 0:
        click.echo(click.unstyle(done.stdout + done.stderr), err=True)
        sys.exit("the site has broken links")
    write_for_models(target, tabs)
    if broken := broken_links(target / "site"):
        sys.exit("\n".join(["links that lead nowhere:", *broken]))
    click.echo(f"the site is in {target / 'site'}")


# Pages.


def write_pages(folder: Path) -> list[str]:
    """Write all pages as Markdown. Returns their names, without the ending."""
    hand_written = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    names = {path: path.removeprefix("docs/").removesuffix(".md") for path in sorted(hand_written)}
    sources = {**names, **OTHER_PAGES}
    for source, name in sources.items():
        text = (ROOT / source).read_text("utf-8")
        _write(folder, name, with_links(text, source, sources))
    shutil.copytree(ROOT / "docs" / "images", folder / "images")
    for schema in (ROOT / "docs").glob("*.schema.json"):
        shutil.copy(schema, folder)
    made = {
        "python": [*python_reference.pages(ROOT / "src")],
        "errors": [("index", error_reference.summary()), *error_reference.pages()],
    }
    names = [*sources.values()]
    for kind, found in made.items():
        for name, text in found:
            names.append(f"reference/{kind}/{name}")
            _write(folder, names[-1], text)
    names.append("reference/schemas")
    _write(folder, names[-1], schemas())
    return names


def _write(folder: Path, name: str, text: str) -> None:
    path = folder / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def with_links(text: str, source: str, sources: Mapping[str, str]) -> str:
    """The text of a page with its links as they are in the site: pages by their names there, and
    what is no page (an example, a test) by its path, as code. Names of pages become links."""

    folder = posixpath.dirname(sources[source]) or "."

    def from_here(path: str) -> str:
        return posixpath.relpath(path, folder)

    def link(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if full in sources:
            return f"[{label}]({from_here(f'{sources[full]}.md')}{'#' * bool(anchor)}{anchor})"
        if full.startswith("docs/"):
            return f"[{label}]({from_here(full.removeprefix('docs/'))})"
        return f"{label} (`{full}`)"

    def page(match: re.Match[str]) -> str:
        name = sources.get(match[1])
        return match[0] if name is None else f"[{match[1]}]({from_here(f'{name}.md')})"

    text = re.sub(r"(?<!!)\[([^\]]*)\]\(\s*([^)\s]+)\)", link, text)
    text = re.sub(r"(!\[[^\]]*\]\()docs/", r"\1", text)
    return re.sub(r"(?<!\[)`((?:docs/)?[\w-]+\.md)`", page, text)


def schemas() -> str:
    """The page with the JSON Schemas of events and results."""
    shown = []
    for name, kind in (("Event", events.Event), ("Result", Result)):
        schema = without_samples(msgspec.json.schema(kind, schema_hook=lambda _: {}))
        shown.append(f"## {name}\n\n```json\n{json.dumps(schema, indent=1)}\n```")
    intro = (
        "# JSON Schemas\n\nWhat `corral run --json` prints, one event per line, and the result of a"
        " run. [Events and results](../events-and-results.md) says what they mean."
    )
    return "\n\n".join([intro, *shown]) + "\n"


# The configuration.


def navigation(names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Tab -> section -> its pages, as paths."""
    left = dict.fromkeys(names)

    def taken(wanted: str) -> list[str]:
        chosen = [n for n in left if n == wanted or (wanted[-1] == "/" and n.startswith(wanted))]
        for name in chosen:
            del left[name]
        return [f"{name}.md" for name in chosen]

    tabs = {
        tab: {name: [path for page in pages for path in taken(page)] for name, pages in own.items()}
        for tab, own in NAVIGATION.items()
    }
    if left:
        tabs["Cookbook"]["More"] = [f"{name}.md" for name in left]
    return tabs


def configuration(tabs: Navigation) -> dict[str, object]:
    """The mkdocs.yml, whose format is a superset of JSON. The fonts are those of the reader's
    machine, so that the site works without a network."""
    return {
        "site_name": "corral",
        "site_description": "Every coding agent and every model through one interface",
        "docs_dir": "pages",
        "site_dir": "site",
        "use_directory_urls": True,
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                *("navigation.tabs", "navigation.sections", "navigation.indexes"),
                *("navigation.prune", "navigation.top", "toc.follow"),
                *("search.highlight", "search.suggest", "content.code.copy"),
            ],
            "palette": [
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "toggle": {"icon": "lucide/sun", "name": "Dark"},
                },
                {
                    "media": "(prefers-color-scheme: dark)",
                    "scheme": "slate",
                    "toggle": {"icon": "lucide/moon", "name": "Light"},
                },
            ],
        },
        "markdown_extensions": [
            *("admonition", "attr_list", "tables"),
            {"toc": {"permalink": True}},
            *("pymdownx.highlight", "pymdownx.superfences"),
        ],
        "nav": [{tab: _entries(sections)} for tab, sections in tabs.items()],
    }


def _entries(sections: Mapping[str, list[str]]) -> list[object]:
    """The pages of a section without a name stand in the tab itself."""
    entries: list[object] = []
    for name, paths in sections.items():
        entries += [{name: paths}] if name else paths
    return entries


# After the build.


def write_for_models(target: Path, tabs: Navigation) -> None:
    """``llms.txt`` and ``llms-full.txt``."""
    pages, site = target / "pages", target / "site"
    lines = ["# corral", "", "> Runs coding agents and models from Python or the command line."]
    for tab, sections in tabs.items():
        lines += ["", f"## {tab}", ""]
        for path in (path for paths in sections.values() for path in paths):
            title = (pages / path).read_text("utf-8").partition("\n")[0].removeprefix("# ")
            address = f"{path.removesuffix('.md')}/".removesuffix("index/")
            lines.append(f"- [{title}]({address or './'})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
    full = (pages / p for tab in FOR_MODELS for paths in tabs[tab].values() for p in paths)
    (site / "llms-full.txt").write_text("\n\n".join(p.read_text("utf-8") for p in full), "utf-8")


def broken_links(site: Path) -> list[str]:
    """Links and anchors of the built pages that lead nowhere in the site."""
    texts = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    anchors = {path: {*re.findall(r'\sid="([^"]+)"', text)} for path, text in texts.items()}
    broken: list[str] = []
    for path, text in texts.items():
        if path.name == "404.html":  # its links are absolute
            continue
        for target in {*re.findall(r'<a\s[^>]*href="([^"]+)"', text)}:
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            other = (path.parent / name).resolve() if name else path
            other = other / "index.html" if other.is_dir() else other
            if not other.exists() or (anchor and anchor not in anchors.get(other, {anchor})):
                broken.append(f"{path.relative_to(site)}: {target}")
    return sorted(broken)


if __name__ == "__main__":
    main()
