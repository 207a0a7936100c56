"""Tasks are read from files and checked before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._engine.batch import tasks as batch_tasks
from corral._engine.batch.task_scheduler import BatchTask
from corral.errors import ConfigError


def read(tmp_path: Path, data: bytes | str, name: str = "tasks.jsonl") -> list[BatchTask]:
    file = tmp_path / name
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    return batch_tasks.read_tasks(file)


def ids(tasks: list[BatchTask]) -> list[str]:
    return [task.id for task in tasks]


def test_each_line_is_an_object_or_a_text(tmp_path: Path) -> None:
    tasks = read(tmp_path, '{"id": "a", "x": 1}\n"a text"\n\n{"id": 7, "x": null}\n')
    assert ids(tasks) == ["a", "2", "7"]
    assert tasks[1].fields == {"task": "a text"}


def test_a_byte_order_mark_and_windows_line_ends_are_removed(tmp_path: Path) -> None:
    tasks = read(tmp_path, b'\xef\xbb\xbf{"x": "1"}\r\n{"x": "2"}\r\n')
    assert [task.fields for task in tasks] == [{"x": "1"}, {"x": "2"}]
    rows = read(tmp_path, b"\xef\xbb\xbfid,x\r\na,1\r\nb,2\r\n", "t.csv")
    assert ids(rows) == ["a", "b"]


def test_a_csv_file_has_a_header_and_quoted_values(tmp_path: Path) -> None:
    tasks = read(tmp_path, 'id,text\na,"one, two\nthree"\nb,""\n', "t.csv")
    assert tasks[0].fields == {"id": "a", "text": "one, two\nthree"}
    assert tasks[1].fields == {"id": "b", "text": ""}


def test_each_line_of_a_text_file_is_a_task(tmp_path: Path) -> None:
    assert [t.fields["task"] for t in read(tmp_path, "one\n\n two \n", "t.txt")] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.jsonl", b"", "contains no tasks"),
        ("t.jsonl", b"\n \r\n", "contains no tasks"),
        ("t.csv", b"", "contains no tasks"),
        ("t.csv", b"id,x\n", "contains no tasks"),
        ("t.jsonl", b'{"x": 1}\n{"x": \n', "line 2 is not JSON"),
        ("t.jsonl", b'{"x": 1}\n[1]\n', "line 2: a task must be an object or a text"),
        ("t.jsonl", b"17\n", "line 1: a task must be an object or a text"),
        ("t.jsonl", b"\x00\x01\x02\xff\xfe" * 40, "line 1 is not JSON"),
        ("t.jsonl", b'"\xff"\n', "line 1 is not JSON"),
        ("t.jsonl", b'{"x": "' + b"a" * 600_000 + b'"}\n', "line 1: the task has 600,"),
        ("t.jsonl", b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        ("t.txt", b"\xff\xfe\n", "line 1 is not UTF-8"),
        ("t.txt", b"a\0b\n", "NUL"),
        ("t.csv", b"\xff\xfe\n", "is not UTF-8"),
        ("t.csv", b"a,b\n1\n", "line 2 has 1 columns, the header 2"),
        ("t.csv", b"a,a\n1,2\n", "must name each column once"),
        ("t.csv", b'a\n"open\n', "line 2: unexpected end"),
        ("t.jsonl", b'{"id": "a"}\n{"id": "a"}\n', "line 2: t.jsonl line 1 already has the id 'a'"),
        ("t.jsonl", b'"x"\n{"id": 1}\n', "line 2: t.jsonl line 1 already has the id '1'"),
        ("t.jsonl", b'{"id": true}\n', "an id must be a text or a number"),
        ("t.jsonl", b'{"id": "a\\nb"}\n', "is not a valid id"),
    ],
)
def test_an_invalid_task_is_reported_with_its_line(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, data, name)
    assert message in str(raised.value)


def test_a_missing_task_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        batch_tasks.read_tasks(tmp_path / "gone.jsonl")


def test_a_missing_field_is_reported_with_its_task() -> None:
    tasks = batch_tasks.make_tasks([{"id": "a", "x": 1, "deep": {"y": 2}}, {"id": "b", "x": 1}])
    assert batch_tasks.check_tasks(tasks, "{{x}}", {})
    with pytest.raises(ConfigError, match=r"task 'b' has no field 'deep\.y'"):
        batch_tasks.check_tasks(tasks, "{{x}} {{deep.y}}", {})
    with pytest.raises(ConfigError, match="the prompt of task 'a' is empty"):
        batch_tasks.check_tasks(batch_tasks.make_tasks([{"id": "a", "x": " "}]), "{{x}}", {})
    with pytest.raises(ConfigError, match="the prompt is empty"):
        batch_tasks.check_tasks(tasks, " \n", {})


def test_placeholders_in_a_value_are_not_filled() -> None:
    (one,) = batch_tasks.check_tasks(
        batch_tasks.make_tasks([{"x": "{{y}}", "y": "no"}]), "{{x}}", {}
    )
    (other,) = batch_tasks.check_tasks(
        batch_tasks.make_tasks([{"x": "no", "y": "no"}]), "{{x}}", {}
    )
    assert one.digest != other.digest


def test_the_digest_depends_only_on_the_prompt_and_the_options() -> None:
    def digest(fields: dict[str, str], template: str, **options: str) -> str:
        return batch_tasks.check_tasks(batch_tasks.make_tasks([fields]), template, {**options})[
            0
        ].digest

    base = digest({"x": "1"}, "do {{x}}", model="m")
    assert digest({"x": "1", "note": "new"}, "do {{x}}", model="m") == base
    assert digest({"x": "2"}, "do {{x}}", model="m") != base
    assert digest({"x": "1"}, "do {{x}}!", model="m") != base
    assert digest({"x": "1"}, "do {{x}}", model="n") != base


def test_differences_are_described() -> None:
    before = {"a": "1", "b": "1", "c": "1"}
    assert batch_tasks.difference(before, before) == ""
    message = batch_tasks.difference(before, {"a": "1", "b": "2", "d": "1"})
    assert message == "1 task is changed (b), 1 task is new (d), 1 task is gone (c)"


def test_an_empty_list_of_tasks_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are no tasks"):
        batch_tasks.make_tasks([])
