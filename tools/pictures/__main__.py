"""Makes the pictures of the documentation, from real runs: ``corral demo`` as an animated SVG, and
pages of ``corral view`` in Chromium.

    python -m pictures [FOLDER]

Without FOLDER those that the documentation shows are written to ``docs/images``, else every page
of the view to FOLDER, in dark and light, and narrow. Look at them. No key and no network is needed
if the Gemini CLI is installed (``corral agents install gemini``).
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pictures import terminal_cast
from pictures.sample_runs import DAY, MAIN, write_sample_runs
from playwright.sync_api import Browser, Page
from support.browser import environment_of, running_browser
from support.installed_agents import installed
from support.scripted_agent import PROGRAM
from support.view_server import running_view

from corral._sessions.store import EVENTS
from corral.testing import Call, ModelServer, Request, Turn

DOCS = Path(__file__).parents[2] / "docs" / "images"
WIDE = {"width": 1320, "height": 820}
NARROW = {"width": 390, "height": 780}
CONTENT = "main :is(.item, .run, .table, .chart, .bars, .graph svg, .raw-line, .file-diff)"
"""What each page shows once its data is there."""
TO_WEBP = """async url => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.8);
}"""
IN_DOCS = {
    *("runs-light", "session-dark", "changes-light", "pipeline-dark"),
    *("compare-light", "cost-light"),
}
DEMO = DOCS / "demo.svg"
DEMO_TITLE = (
    "corral demo in a terminal: the Gemini CLI reads a project, fixes a bug, is denied a shell"
    " command, and returns a typed result"
)

PIPELINE = """\
digraph release {
    goal = "Release notes of version 2.4"
    node [agent="gemini-cli", timeout=15m]
    start  [shape=Mdiamond, label="Start"]
    log    [shape=parallelogram, label="Read the commits", tool_command="echo 14 commits"]
    plan   [label="Plan the notes", prompt="init\\ntext The notes have **three** parts: features, \
fixes and known problems.\\nuse read_file CHANGELOG.md\\nused read_file\\ntext The plan is \
complete.\\nresult"]
    fork   [shape=component, label="Write"]
    notes  [label="Write the notes", prompt="init\\ntext Wrote NOTES.md.\\nresult"]
    site   [label="Update the site", prompt="init\\ntext Updated the page.\\nresult"]
    join   [shape=tripleoctagon, label="Join"]
    check  [shape=parallelogram, label="Check the links", tool_command="echo 31 links"]
    agree  [shape=hexagon, label="Publish the notes?"]
    done   [shape=Msquare, label="Done"]
    start -> log -> plan -> fork
    fork -> notes -> join
    fork -> site -> join
    join -> check
    check -> agree [condition="outcome=success"]
    check -> plan  [condition="outcome=fail"]
    agree -> done  [label="[P] Publish"]
    agree -> plan  [label="[A] Again"]
}
"""


def make_demo() -> None:
    """Record ``corral demo`` with the tested version of the CLI."""
    argv = [sys.executable, "-m", "corral", "demo", "--program", installed("gemini-cli")]
    lines = terminal_cast.record(argv, DOCS, dict(os.environ))
    DEMO.write_text(terminal_cast.picture("corral demo", lines, DEMO_TITLE), "utf-8")
    print(DEMO)


def corral(
    folder: Path, home: Path, *words: str, tools: Path | None = None, env: Mapping[str, str] = {}
) -> None:
    """Run a command; its exit code says nothing here (a gate that waits is one)."""
    tools = tools or folder / "bin"
    if not tools.exists():
        tools.mkdir()
        (tools / "gemini").symlink_to(PROGRAM)
    # The scripted program is no Gemini CLI.
    env = {**environment_of(home), **env, "CORRAL_PROBE": "never"}
    env["PATH"] = f"{tools}{os.pathsep}{env['PATH']}"
    subprocess.run(
        [sys.executable, "-m", "corral", *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def make_runs(folder: Path, home: Path) -> None:
    write_sample_runs(home)
    (folder / "release.dot").write_text(PIPELINE)
    corral(folder, home, "pipeline", "run", "release.dot")
    tasks = [f"Summarize chapter {number}" for number in range(1, 25)]
    lines = [
        f'{{"task": "{task}", "end": "{"error" if number % 7 == 3 else "success"}"}}\n'
        for number, task in enumerate(tasks)
    ]
    (folder / "chapters.jsonl").write_text("".join(lines))
    prompt = "init\ntext {{task}}: done\nresult {{end}}"
    corral(folder, home, "batch", "chapters.jsonl", "--agent", "gemini-cli", "--prompt", prompt)
    make_comparison(folder, home)


TASKS = {
    "retry-limit": "The retry limit is ignored after a timeout",
    "pagination": "The last page of orders is empty",
    "price-rounding": "Prices are rounded down",
    "csv-import": "The import stops at an empty line",
    "login-loop": "The login page redirects to itself",
    "cache-key": "Two shops share a cache entry",
}


def make_comparison(folder: Path, home: Path) -> None:
    """Six tasks for two models, which fail some."""
    work = folder / "shop"
    work.mkdir()
    (work / "README.md").write_text("# Shop\n")
    tasks = [{"id": name, "prompt": text} for name, text in TASKS.items()]
    (work / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=work, check=True)
    chance = random.Random(2)

    def solve(request: Request) -> Turn:
        usage = {"input": chance.randrange(20_000, 60_000), "output": chance.randrange(500, 2000)}
        is_solved = chance.random() < (0.95 if request.model == "gemini-2.5-pro" else 0.6)
        if is_solved and not request.tool_results:
            write = Call("write_file", {"file_path": "answer.txt", "content": "fixed\n"})
            return Turn(calls=[write], usage=usage)
        return Turn(text="Fixed.", usage=usage)

    agents = "gemini:gemini-2.5-pro,gemini:gemini-2.5-flash"
    with ModelServer(solve) as server:
        corral(
            work, home, "compare", "tasks.jsonl", "--agent", agents, "--repeat", "2", "--approve",
            "all", "--verify", "test -e answer.txt", tools=folder / "bin", env=server.env,
        )  # fmt: skip
    for meta in (home / "sessions").glob("*/meta.json"):  # below the others in the list
        found = json.loads(meta.read_text())
        if "/gemini:" in (found.get("label") or ""):
            found["created"] = found["updated"] = time.time() - 40 * DAY
            meta.write_text(json.dumps(found))
            os.utime(meta.with_name(EVENTS), (found["updated"],) * 2)


def pages(page: Page) -> dict[str, str]:
    """Name -> route. Runs of the engine are found in the list."""
    page.wait_for_selector("a.run")
    found = {
        "runs": "#/",
        "search": "#/?q=jitter",
        "session": f"#/sessions/{MAIN}",
        "changes": f"#/sessions/{MAIN}?tab=changes",
        "permissions": f"#/sessions/{MAIN}?tab=permissions",
        "events": f"#/sessions/{MAIN}?tab=events",
        "details": f"#/sessions/{MAIN}?tab=details",
        "usage": "#/usage",
        "cost": "#/usage?measure=cost",
        "cost-model": "#/usage?by=model&measure=cost",
    }
    for name, kind in (("pipeline", "pipelines"), ("batch", "batches"), ("compare", "compare")):
        link = page.locator(f'a.run[href^="#/{kind}/"]')
        if link.count():
            found[name] = link.first.get_attribute("href") or ""
    if "pipeline" in found:
        path, _, query = found["pipeline"].partition("?")
        found["step"] = f"{path}?{query}&node=plan" if query else f"{path}?node=plan"
    return found


def shoot(browser: Browser, address: str, folder: Path, only: set[str] | None) -> None:
    for theme in ("light", "dark"):
        for size, shape in (("", WIDE), ("-narrow", NARROW)):
            context = browser.new_context(
                viewport={"width": shape["width"], "height": shape["height"]},
                color_scheme=theme,
                timezone_id="UTC",
            )
            page = context.new_page()
            page.goto(address)
            root = page.url.split("#")[0]
            for name, route in pages(page).items():
                title = f"{name}{size}-{theme}"
                if only is not None and title not in only:
                    continue
                page.goto(f"{root}{route}")
                page.wait_for_selector(f"{CONTENT} >> visible=true")
                page.wait_for_timeout(700)
                target = folder / f"{title}.{'png' if only is None else 'webp'}"
                save(browser, page.screenshot(), target)
                print(target)
            context.close()


def save(browser: Browser, picture: bytes, target: Path) -> None:
    """Write a picture; as WebP, which is smaller, if the name says so."""
    if target.suffix == ".webp":
        page = browser.new_page()
        encoded = base64.b64encode(picture).decode()
        found = page.evaluate(TO_WEBP, f"data:image/png;base64,{encoded}")
        page.close()
        picture = base64.b64decode(str(found).partition(",")[2])
    target.write_bytes(picture)


def main() -> None:
    wanted = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    folder = wanted or DOCS
    folder.mkdir(parents=True, exist_ok=True)
    if wanted is None:
        make_demo()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        make_runs(Path(name), home)
        with running_browser() as browser, running_view(home) as server:
            shoot(browser, server.address, folder, None if wanted else IN_DOCS)


if __name__ == "__main__":
    main()
