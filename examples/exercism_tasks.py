"""Make a list of tasks for `corral compare` of exercises in the format of exercism.

    git clone https://github.com/Aider-AI/polyglot-benchmark
    cd polyglot-benchmark/python/exercises
    python exercism_tasks.py practice tasks "python3 -m pytest -q ."
    corral compare tasks/tasks.jsonl --agent gemini,claude --approve edits

Other formats are converted in the same way: an object per line, with paths relative to the list.
The agent gets `folder`; `tests` are copied beside its work when it has ended, and `verify` runs.
"""

import json
import shutil
import sys
from pathlib import Path

exercises, target, verify = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
target.mkdir(parents=True)
with (target / "tasks.jsonl").open("w") as tasks:
    for exercise in sorted(path.parent.parent for path in exercises.glob("*/.meta/config.json")):
        files = json.loads((exercise / ".meta/config.json").read_text())["files"]
        folder, tests = (f"{exercise.name}/{name}" for name in ("files", "tests"))
        # The agent sees neither the tests, nor .meta, which has a solution.
        hidden = shutil.ignore_patterns(".meta", ".docs", *files["test"])
        shutil.copytree(exercise, target / folder, ignore=hidden)
        for name in files["test"]:
            (target / tests / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(exercise / name, target / tests / name)
        texts = [path.read_text() for path in sorted(exercise.glob(".docs/in*.md"))]
        task = {
            "id": exercise.name,
            "prompt": "\n\n".join([*texts, f"Implement it in: {', '.join(files['solution'])}."]),
            "folder": folder,
            "tests": tests,
            "verify": f"cp -r tests/. . && rm -r tests && {verify}",
        }
        tasks.write(json.dumps(task) + "\n")
