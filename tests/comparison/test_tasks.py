"""Tasks of strangers, read from a file or a folder: nothing outside of it is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from corral._comparison import tasks
from corral._comparison.task_folders import CompareTask
from corral._system import paths
from corral.errors import ConfigError

SECRET = "canary-of-the-home"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user, beside the tasks."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("test.sh", "instruction.md", "instructions.md", "task.toml", "config.json"):
        (folder / name).write_text(SECRET)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a task of harbor and an exercise."""
    found = tmp_path / "tasks"
    config = {"files": {"solution": ["a.py"], "test": ["a_test.py"]}}
    for path, text in {
        "harbor/task.toml": '[environment]\nworkdir = "/app"\n',
        "harbor/instruction.md": "Do it.",
        "harbor/environment/given": "start",
        "harbor/tests/test.sh": "true",
        "exercise/.docs/instructions.md": "Do it.",
        "exercise/.docs/introduction.md": "First.",
        "exercise/.meta/config.json": json.dumps(config),
        "exercise/a.py": "",
        "exercise/a_test.py": "",
    }.items():
        (found / path).parent.mkdir(parents=True, exist_ok=True)
        (found / path).write_text(text)
    return found


def read(given: Path) -> list[CompareTask]:
    return tasks.read(given, given.parent)


def test_tasks_of_a_folder_are_confined(folder: Path) -> None:
    exercise, harbor = read(folder)
    assert (exercise.id, harbor.id) == ("exercise", "harbor")
    assert exercise.is_confined
    assert harbor.is_confined
    assert (exercise.skipped, harbor.skipped) == ("", "")
    assert exercise.prompt.startswith("First.\n\nDo it.")
    assert not any(task.is_confined for task in tasks.read(folder, folder, trusted=True))


PARTS = (
    *("harbor", "harbor/task.toml", "harbor/instruction.md", "harbor/environment"),
    *("harbor/tests", "harbor/tests/test.sh", "exercise", "exercise/.docs"),
    *("exercise/.docs/instructions.md", "exercise/.docs/introduction.md", "exercise/.meta"),
    *("exercise/.meta/config.json", "exercise/a_test.py"),
)


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_a_task_may_be_a_link(folder: Path, outside: Path, part: str) -> None:
    path = folder / part
    target = outside if path.is_dir() else outside / "instruction.md"
    (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="leads through a link") as caught:
        read(folder)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("field", ["solution", "test"])
@pytest.mark.parametrize("path", ["../../outside/test.sh", "/etc/passwd", ".", "", "./a_test.py"])
def test_an_exercise_names_files_of_its_own_folder(
    folder: Path, outside: Path, field: str, path: str
) -> None:
    files = {"solution": ["a.py"], "test": ["a_test.py"], field: [path, "a.py"]}
    (folder / "exercise/.meta/config.json").write_text(json.dumps({"files": files}))
    with pytest.raises(ConfigError, match="task 'exercise': the path"):
        read(folder)
    assert (outside / "test.sh").read_text() == SECRET


PLACES: dict[str, Callable[[], str]] = {
    "root": lambda: "/",
    "system": lambda: "/usr",
    "below": lambda: "/etc/x",
    "proc": lambda: "/proc/self",
    "home": lambda: str(paths.user_home()),
    "above-home": lambda: str(paths.user_home().parent),
    "below-home": lambda: f"{paths.user_home()}/.ssh",
    "own": lambda: str(paths.home()),
    "tests": lambda: "/tests",
    "logs": lambda: "/logs/verifier",
    "temporary": lambda: "/tmp",
    "relative": lambda: "app",
    "parent": lambda: "/app/../usr",
    "double": lambda: "//app",
    "control": lambda: "/a\tb",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_workdir_that_would_replace_a_folder_of_the_sandbox_is_skipped(
    folder: Path, place: str
) -> None:
    workdir = json.dumps(PLACES[place]())
    (folder / "harbor/task.toml").write_text(f"[environment]\nworkdir = {workdir}\n")
    _, harbor = read(folder)
    assert "its workdir cannot be" in harbor.skipped


@pytest.mark.parametrize("workdir", ["/app", "/app/", "/workspace/project", "/tmp/x"])
def test_other_workdirs_are_used(folder: Path, workdir: str) -> None:
    (folder / "harbor/task.toml").write_text(f'[environment]\nworkdir = "{workdir}"\n')
    _, harbor = read(folder)
    assert (harbor.skipped, harbor.workdir) == ("", workdir.rstrip("/"))


@pytest.mark.parametrize("field", ["tests", "folder"])
def test_paths_of_a_task_file_stay_in_its_folder(folder: Path, outside: Path, field: str) -> None:
    file = folder / "tasks.jsonl"
    (folder / "link").symlink_to(outside)
    for path in (str(outside), "../outside", "link", "link/.."):
        file.write_text(json.dumps({"id": "one", "prompt": "x", field: path}))
        with pytest.raises(ConfigError, match="task 'one': "):
            read(file)
        (task,) = tasks.read(file, folder, trusted=True)
        assert not task.is_confined
    file.write_text(json.dumps({"id": "one", "prompt": "x", field: "harbor/"}))
    (task,) = read(file)
    assert getattr(task, field) == str(folder / "harbor")
    assert task.is_confined


def test_a_task_that_is_only_a_prompt_is_not_confined(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('"a prompt"\n{"prompt": "b", "verify": "true"}\n')
    assert [task.is_confined for task in read(file)] == [False, True]
    given = [{"prompt": "b", "verify": "true", "folder": str(tmp_path)}]
    assert [task.is_confined for task in tasks.read(given, tmp_path)] == [False]
