"""Files as tasks of a batch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

import corral
from corral._engine.batch.tasks import MAX_BYTES, batch_name, find_files
from corral.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (
        *("b.py", "a.py", "notes.txt", ".hidden.py", "src/c.py", "src/deep/d.py"),
        *("src/.git/e.py", "node_modules/x/f.py", "app/[slug]/page.py"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path


def paths(project: Path, *patterns: str) -> list[str]:
    return [task["path"] for task in find_files(patterns, cwd=project, content=True).tasks]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["*.py"], ["a.py", "b.py"]),
        (["**/*.py"], ["a.py", "app/[slug]/page.py", "b.py", "src/c.py", "src/deep/d.py"]),
        (["src/**"], ["src/c.py", "src/deep/d.py"]),
        (["src/*/?.py", "b.*", "b.py"], ["b.py", "src/deep/d.py"]),
        ([".*.py"], [".hidden.py"]),
        (["node_modules/*/*.py"], ["node_modules/x/f.py"]),
        (["app/[slug]/page.py"], ["app/[slug]/page.py"]),
    ],
)
def test_files_that_match_are_tasks_in_the_order_of_their_paths(
    project: Path, patterns: list[str], found: list[str]
) -> None:
    assert paths(project, *patterns) == found


def test_a_task_has_a_path_an_id_and_the_content(project: Path) -> None:
    (task,) = find_files(["src/c.py"], cwd=project, content=True).tasks
    assert task == {"id": "src/c.py", "path": "src/c.py", "content": "# src/c.py\n"}
    (task,) = find_files(["src/c.py"], cwd=project, content=False).tasks
    assert "content" not in task


def test_paths_outside_the_working_directory_are_relative_to_it(project: Path) -> None:
    assert paths(project / "src", "../*.py", str(project / "src" / "c.py")) == [
        "../a.py",
        "../b.py",
        "c.py",
    ]


def test_links_to_folders_are_not_followed_by_two_stars(project: Path) -> None:
    os.symlink(project, project / "src" / "loop")
    assert paths(project, "src/**/*.py") == ["src/c.py", "src/deep/d.py"]


def test_files_that_are_not_text_are_skipped_and_named(project: Path) -> None:
    (project / "image.py").write_bytes(b"\x89PNG\0")
    (project / "latin.py").write_bytes(b"caf\xe9")
    (project / "large.py").write_text("x" * (MAX_BYTES + 1))
    found = find_files(["*.py"], cwd=project, content=True)
    assert [task["path"] for task in found.tasks] == ["a.py", "b.py"]
    assert found.note == (
        "skipped 3 of 5 files: 1 binary (image.py), 1 larger than 512 KB (large.py),"
        " 1 not UTF-8 (latin.py)"
    )
    without_content = find_files(["*.py"], cwd=project, content=False)
    assert (len(without_content.tasks), without_content.note) == (5, "")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("image.bin", "image.bin is binary"),
        ("*.bin", "there are no tasks: skipped 1 of 1 files: 1 binary"),
        ("*.rs", "no file matches '\\*.rs'"),
        ("missing.py", "there is no file 'missing.py'"),
        ("src", "src is a folder"),
        ("", "is a folder|there is no file"),
    ],
)
def test_what_gives_no_task_is_an_error(project: Path, pattern: str, says: str) -> None:
    (project / "image.bin").write_bytes(b"\0")
    with pytest.raises(ConfigError, match=says):
        find_files([pattern], cwd=project, content=True)


def test_a_path_that_is_no_id_gets_one_that_stays_the_same(project: Path) -> None:
    long = "/".join(["a-rather-long-folder-name"] * 9) + "/x.py"
    (project / long).parent.mkdir(parents=True)
    (project / long).touch()
    first, second = (find_files([long], cwd=project, content=False).tasks for _ in range(2))
    assert first == second
    assert first[0]["id"].startswith("file-")


def test_the_same_files_of_the_same_folder_are_the_same_batch(project: Path) -> None:
    assert batch_name(["src/*.py"], project) == batch_name(["src/*.py"], project)
    assert batch_name(["src/*.py"], project) != batch_name(["src/*.py"], project / "src")


async def test_a_batch_in_python_runs_over_files(project: Path) -> None:
    (project / "image.py").write_bytes(b"\0")
    with pytest.warns(UserWarning, match="skipped 1 of 3 files"):
        tasks = corral.file_tasks("*.py", cwd=project)
    report = await corral.batch(
        tasks, "{{path}}: {{content}}", simulate=True, durable=False, cwd=project
    )
    assert [result.id for result in report.results] == ["a.py", "b.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(corral.file_tasks("*.py", cwd=project, content=False)) == 3
