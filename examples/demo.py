"""The real Gemini CLI at work on a small project, against a scripted model.

It reads the project, fixes a bug, is denied a shell command by the policy, and
returns one typed result. No key, no network: the model is a script.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import corral
from corral import events
from corral.testing import Call, ModelServer, Turn

PROJECT = {
    "README.md": "# greet\n\nSays hello, politely.\n",
    "greet.py": 'def greet(name: str) -> str:\n    return "Hello " + nane\n',
}


def script(project: Path) -> list[Turn]:
    """What the model says, turn by turn."""
    project = project.resolve()
    return [
        Turn(
            thoughts="Let me look at the project first.",
            text="I will look at the project.",
            calls=[
                Call("list_directory", {"dir_path": "."}),
                Call("read_file", {"file_path": "greet.py"}),
            ],
        ),
        Turn(
            text="`nane` is a typo for `name`. I will fix it.",
            calls=[
                Call(
                    "replace",
                    {
                        "file_path": str(project / "greet.py"),
                        "instruction": "Fix the misspelt variable.",
                        "old_string": '"Hello " + nane',
                        "new_string": 'f"Hello, {name}!"',
                    },
                )
            ],
        ),
        Turn(
            text="Now I will test it.",
            calls=[Call("run_shell_command", {"command": "python -c 'import greet' > ran.txt"})],
        ),
        Turn(
            text="I fixed greet.py. I was not allowed to run it, so it is untested.",
            usage={"input": 2400, "output": 60, "cached": 1200, "thoughts": 12},
        ),
    ]


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="corral-demo-") as folder:
        for name, content in PROJECT.items():
            (Path(folder) / name).write_text(content)
        async with ModelServer(script(Path(folder))) as model:
            result = await corral.run(
                "gemini-cli",
                "greet.py fails with a NameError. Fix it, and test it.",
                cwd=folder,
                model="gemini-2.5-flash",
                policy=corral.Policy.edits(),
                env={"GOOGLE_GEMINI_BASE_URL": model.url, "GEMINI_API_KEY": "none-is-needed"},
                keep=False,
                on_event=show,
            )
        fixed = (Path(folder) / "greet.py").read_text()
        ran = (Path(folder) / "ran.txt").exists()
    print(f"\n— greet.py on disk —\n{fixed}")
    print("— the result —")
    print(f"status   {result.status}")
    print(f"text     {result.final_text}")
    print(f"files    {[(file.kind, Path(file.path).name) for file in result.files]}")
    print(f"denied   {[call.title for call in result.denied]}")
    print(f"usage    {result.usage}")
    print(f"model    {result.model} by {result.agent} {result.agent_version}")
    good = result.ok and "name}" in fixed and not ran and len(result.denied) == 1
    print("\nEverything worked as expected." if good else "\nSomething is wrong.")
    return 0 if good else 1


def show(event: events.Event) -> None:
    """Prints one line per event."""
    match event:
        case events.Init():
            print(f"init         {event.agent} {event.agent_version}, {event.model}")
        case events.Text():
            print(f"text         {event.delta}")
        case events.ToolUse():
            print(f"tool_use     {event.title}  ({event.kind})")
        case events.ToolResult():
            print(f"tool_result  {event.name}: {event.status}")
        case events.FileChange():
            print(f"file_change  {event.kind} {Path(event.path).name}")
        case events.Done():
            print(f"done         {event.status} after {event.duration_ms / 1000:.1f} s")
        case _:
            print(f"{type(event).__name__.lower():12} …")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
