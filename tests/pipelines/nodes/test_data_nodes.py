"""Values and files: set, switch, json_extract, read_file, write_file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.nodes import NodeHarness

from corral._pipelines import node_kinds
from corral._pipelines.execution import attempt as works
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler.outcome import Outcome
from corral.values import Json

pytest_plugins = ("support.node_fixtures",)


async def test_set_keeps_the_types_of_values(harness: NodeHarness) -> None:
    outcome = await harness.attempt(
        attrs={
            "type": "set",
            "key": "greeting",
            "value": "Hello {{who.name}}",
            "set.n": 3,
            "set.flag": True,
            "set.copy": "{{who}}",
        },
        context={"who": {"name": "Ann"}},
    )
    assert outcome.context_updates == {
        "greeting": "Hello Ann",
        "n": 3,
        "flag": True,
        "copy": {"name": "Ann"},
    }


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({}, "sets nothing"),
        ({"key": "x"}, "has a key and no value"),
        ({"key": "internal.thread.t", "value": "x"}, "is reserved for corral"),
        ({"set.graph.goal": "x"}, "is reserved for corral"),
    ],
)
async def test_an_invalid_set_node_fails(
    harness: NodeHarness, attrs: dict[str, Any], expected: str
) -> None:
    outcome = await harness.attempt(attrs={"type": "set", **attrs})
    assert expected in outcome.failure_reason
    assert outcome.retryable is False


async def switched(
    harness: NodeHarness,
    edges: list[tuple[str, dict[str, Any]]],
    context: dict[str, Json],
    **attrs: Any,
) -> Outcome:
    async with NodeResources() as resources:
        work = harness.context(
            "s", resources=resources, attrs={"type": "switch", **attrs}, context=context
        )
        node = Node("s", {"type": "switch", **attrs})
        nodes = {"s": node, **{target: Node(target) for target, _ in edges}}
        graph = Graph("g", {}, nodes, [Edge("s", target, given) for target, given in edges])

        return await works.attempt(msgspec.structs.replace(work, graph=graph, node=node))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("x", {"label": "[R] Red"}),
    ("y", {"label": "green"}),
]


async def test_a_switch_prefers_the_edge_of_its_value(harness: NodeHarness) -> None:
    outcome = await switched(harness, CASES, {"colour": "RED"}, key="colour")
    assert (outcome.status, outcome.preferred_label) == ("success", "RED")
    outcome = await switched(harness, CASES, {"colour": {"of": "green"}}, value="{{colour.of}}")
    assert outcome.preferred_label == "green"


async def test_a_switch_takes_its_default_edge_and_no_other(
    harness: NodeHarness,
) -> None:
    outcome = await switched(harness, [*CASES, ("z", {"label": "default"})], {"c": "blue"}, key="c")
    assert outcome.suggested_next_ids == ("z",)
    outcome = await switched(harness, [*CASES, ("z", {})], {"c": "blue"}, key="c")
    assert outcome.suggested_next_ids == ("z",)
    outcome = await switched(harness, CASES, {"c": "blue"}, key="c")
    assert outcome.status == "fail"
    assert "no edge for 'blue': there is '[R] Red', 'green'" in outcome.failure_reason


@pytest.mark.parametrize(
    ("text", "path", "found"),
    [
        ('{"a": {"b": [1, {"c": "x"}]}}', "a.b[1].c", "x"),
        ('Here you are:\n```json\n{"a": [1, 2]}\n```\nFine?', "$.a.0", 1),
        ('I think {"a": null} is it', "a", None),
        ("[1, 2]", "", [1, 2]),
    ],
)
async def test_json_is_found_in_an_answer(
    harness: NodeHarness, text: str, path: str, found: Json
) -> None:
    outcome = await harness.attempt(
        attrs={"type": "json_extract", "path": path, "key": "found"},
        context={"last_response": text},
    )
    assert outcome.status == "success", outcome
    assert outcome.context_updates == {"found": found}


@pytest.mark.parametrize(
    ("text", "path", "wrong"),
    [
        ("no JSON here", "a", "there is no JSON in it"),
        ('{"a": 1}', "b", "there is no 'b'"),
        ('{"a": [1]}', "a[3]", "there is no 'a[3]'"),
        ('{"a": 1}', "a[", "is not a path"),
    ],
)
async def test_missing_json_fails_without_a_default(
    harness: NodeHarness, text: str, path: str, wrong: str
) -> None:
    attrs = {"type": "json_extract", "path": path, "source": "text"}
    outcome = await harness.attempt(attrs=attrs, context={"text": text})
    assert wrong in outcome.failure_reason
    outcome = await harness.attempt(attrs={**attrs, "default": 0}, context={"text": text})
    assert outcome.context_updates == {"step.output": 0}


@pytest.mark.parametrize("kind", ["json_decode", "json_extract"])
@pytest.mark.parametrize("value", [42, -1.5, True, None, "words", "", [], {"a": 1}])
async def test_json_of_any_kind_is_decoded(harness: NodeHarness, kind: str, value: Json) -> None:
    text = f" {msgspec.json.encode(value).decode()}\n"
    attrs = {"type": kind, "source": "text", "key": "k"}
    outcome = await harness.attempt(attrs=attrs, context={"text": text})
    assert outcome.status == "success", outcome
    assert outcome.context_updates == {"k": value}


async def test_the_names_of_text_operations_are_those_that_exist(harness: NodeHarness) -> None:
    attrs = {"type": "string_transform", "source": "t", "ops": ",".join(node_kinds.TEXT_OPS)}
    outcome = await harness.attempt(attrs=attrs, context={"t": " some TEXT "})
    assert outcome.context_updates == {"step.output": "Some Text"}


async def test_json_of_a_missing_key_names_it(harness: NodeHarness) -> None:
    outcome = await harness.attempt(attrs={"type": "json_extract", "source": "no.such"})
    assert "there is no 'no.such' in the context" in outcome.failure_reason


async def test_a_file_is_written_and_read(harness: NodeHarness, workspace: Path) -> None:
    content: Json = {"n": [1, 2]}
    outcome = await harness.attempt(
        "w",
        attrs={"type": "write_file", "path": "out/{{name}}.json", "content": "{{data}}"},
        context={"name": "report", "data": content},
    )
    assert outcome.context_updates == {"w.path": "out/report.json"}
    assert (workspace / "out/report.json").read_text() == '{"n":[1,2]}'
    read = {"type": "read_file", "path": "out/report.json", "key": "back"}
    outcome = await harness.attempt(attrs=read)
    assert outcome.context_updates == {"back": '{"n":[1,2]}'}
    outcome = await harness.attempt(attrs={**read, "format": "json"})
    assert outcome.context_updates == {"back": content}
    assert os.listdir(workspace / "out") == ["report.json"]


async def test_a_file_can_be_appended(harness: NodeHarness, workspace: Path) -> None:
    attrs = {"type": "write_file", "path": "log", "source": "line", "append": True}
    for line in ("one\n", "two\n"):
        await harness.attempt(attrs=attrs, context={"line": line})
    assert (workspace / "log").read_text() == "one\ntwo\n"


ESCAPES = ["../out.txt", "/etc/hostname", "link/out.txt", "a/../../out.txt", "~/x", "a\0b", "."]


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("kind", ["read_file", "write_file"])
async def test_no_path_leads_out_of_the_workspace(
    harness: NodeHarness, workspace: Path, tmp_path: Path, path: str, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "out.txt").write_text("secret")
    (tmp_path / "out.txt").write_text("secret")
    (workspace / "link").symlink_to(outside)
    outcome = await harness.attempt(
        attrs={"type": kind, "path": "{{p}}", "content": "evil"}, context={"p": path}
    )
    assert outcome.status == "fail"
    assert "secret" not in str(outcome)
    assert (outside / "out.txt").read_text() == "secret"
    assert (tmp_path / "out.txt").read_text() == "secret"


async def test_gits_own_folder_is_not_written(harness: NodeHarness, workspace: Path) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    outcome = await harness.attempt(
        attrs={"type": "write_file", "path": ".git/hooks/pre-commit", "content": "evil"}
    )
    assert "belongs to git" in outcome.failure_reason


async def test_a_value_names_no_protected_file_and_nothing_names_a_hidden_one(
    harness: NodeHarness, workspace: Path
) -> None:
    write: dict[str, Any] = {"type": "write_file", "content": "evil"}
    named = {"path": ".mcp.json"}
    outcome = await harness.attempt(attrs={**write, "path": "{{path}}"}, context={**named})
    assert ".mcp.json is protected" in outcome.failure_reason
    assert not (workspace / ".mcp.json").exists()
    assert (await harness.attempt(attrs={**write, **named})).ok
    (workspace / "held-out").mkdir()
    (workspace / "held-out" / "a.txt").write_text("secret")
    async with NodeResources(options={"hidden": ["held-out"]}) as resources:
        for path in ("held-out/a.txt", "{{path}}"):
            outcome = await harness.attempt(
                resources=resources,
                attrs={"type": "read_file", "path": path},
                context={"path": "x/../held-out/a.txt"},
            )
            assert "is in a hidden folder" in outcome.failure_reason


async def test_a_file_that_cannot_be_read_fails_the_node(
    harness: NodeHarness, workspace: Path
) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "large").write_bytes(b"x" * 600_000)
    (workspace / "bytes").write_bytes(b"\xff\xfe")
    (workspace / "folder").mkdir()
    for path, expected in (
        ("missing", "there is no file missing"),
        ("pipe", "is not a file"),
        ("large", "too large"),
        ("bytes", "is not UTF-8"),
        ("folder", "folder"),
    ):
        outcome = await harness.attempt(attrs={"type": "read_file", "path": path})
        assert outcome.status == "fail"
        assert expected in outcome.failure_reason
    outcome = await harness.attempt(attrs={"type": "read_file", "path": "missing", "default": ""})
    assert outcome.context_updates == {"step.output": ""}
