"""Change many files, each in its own worktree, and merge what passes a test.

corral workflow run migrate_files.py --arg task="Use pathlib, not os.path" --arg files="src/*.py" \\
    --arg gate="make test" --arg into=main
"""

import shlex
from dataclasses import dataclass

import corral
from corral.errors import StepError
from corral.workflows import Flow


@dataclass
class Migration:
    changed: list[str]
    unchanged: list[str]
    failed: list[str]
    merged: str = ""
    """How many branches were merged, and why the others were not."""


@corral.workflow
async def migrate_files(
    flow: Flow,
    task: str,
    files: str,
    gate: str,
    into: str = "main",
    agent: str = "gemini-cli",
    at_once: int = 4,
) -> Migration:
    """Do the same task in many files at once, and merge the results one after another.

    ``files``: a pattern of git. ``gate``: the command that must succeed before a file is merged
    into the branch ``into``. What fails keeps its branch: `corral runs show last`.
    """
    listed = await flow.command(f"git ls-files -- {shlex.quote(files)}", check=True, name="files")
    found = Migration([], [], [])
    branches: list[str] = []

    async def migrate(file: str) -> None:
        prompt = f"{task}\n\nDo it in the file {file}, and change nothing else."
        try:
            done = await flow.run(agent, prompt, policy="edits", worktree=True, name="migrate")
        except StepError:
            found.failed.append(file)
            return
        (found.changed if done.branch else found.unchanged).append(file)
        branches.extend([done.branch] if done.branch else [])

    await flow.parallel([migrate(file) for file in listed.stdout.split("\n") if file],
                        max_parallel=at_once)  # fmt: skip
    if branches:
        found.merged = (await flow.merge(branches, into=into, gates=[gate])).summary
    return found
