"""Makes screenshots of every page of ``corral view``, from generated runs.

    python -m support.screenshots [FOLDER]

Without FOLDER the few that the documentation shows are written to ``docs/images``, else all of
them to FOLDER: every page in dark and light, and narrow. Look at them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page
from support.browser import environment_of, running_browser
from support.sample_runs import DAY, MAIN, write_sample_runs
from support.scripted_agent import PROGRAM
from support.view_server import running_view

from corral._sessions.store import EVENTS

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
    return canvas.toDataURL("image/webp", 0.92);
}"""
IN_DOCS = {"runs-light", "session-dark", "changes-light", "pipeline-dark", "session-narrow-dark"}

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


def corral(folder: Path, home: Path, *words: str, tools: Path | None = None) -> None:
    """Run a command; its exit code says nothing here (a gate that waits is one)."""
    tools = tools or folder / "bin"
    if not tools.exists():
        tools.mkdir()
        (tools / "gemini").symlink_to(PROGRAM)
    env = environment_of(home)
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


def make_comparison(folder: Path, home: Path) -> None:
    """Six tasks for three agents, of which some fail by chance."""
    work = folder / "shop"
    work.mkdir()
    (work / "README.md").write_text("# Shop\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=work, check=True)
    order = "sh test $(( $(date +%N | sed s/^0*//) % 4 )) -eq 0 || echo fixed > answer.txt"
    names = ("retry-limit", "pagination", "price-rounding", "csv-import", "login-loop", "cache-key")
    tasks = [{"id": name, "prompt": f"init\n{order}\ntext Fixed.\nresult"} for name in names]
    (work / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    agents = ",".join(f"gemini-cli@gemini-{model}" for model in ("2.5-pro", "2.5-flash"))
    corral(
        work, home, "compare", "tasks.jsonl", "--agents", agents, "--repeat", "2", "--yolo",
        "--verify", "test -e answer.txt", tools=folder / "bin",
    )  # fmt: skip
    for meta in (home / "sessions").glob("*/meta.json"):  # below the others in the list
        found = json.loads(meta.read_text())
        if "/gemini-cli@" in (found.get("label") or ""):
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
        "usage-model": "#/usage?by=model&measure=cost",
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
                page.wait_for_selector(CONTENT)
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
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        make_runs(Path(name), home)
        with running_browser() as browser, running_view(home) as server:
            shoot(browser, server.address, folder, None if wanted else IN_DOCS)


if __name__ == "__main__":
    main()
