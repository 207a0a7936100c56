"""Scripts with one tool name for all agents, and scripts that start over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.builtin_agent import MODELS, BuiltinAgent

import corral
from corral import errors
from corral._cli.fake import EXAMPLE
from corral._testing.model_server.common_tools import as_typed_output, translated
from corral._testing.model_server.request import RequestHeaders
from corral._testing.model_server.script import Cursor, Restart
from corral.testing import Call, Message, ModelServer, Request, Script, Turn, call, say
from corral.values import Json

pytest_plugins = ("support.builtin_agent_fixture",)

WORK = [
    call("write_file", path="new.txt", content="first line\n"),
    call("edit_file", path="new.txt", old="first line", new="second line"),
    call("shell", command="cat new.txt > copy.txt"),
    say("done"),
]


@pytest.mark.parametrize("wire", MODELS)
async def test_one_script_works_with_the_built_in_agent_on_each_wire(
    ours: BuiltinAgent, workspace: Path, wire: str
) -> None:
    script = [*WORK[:1], call("read_file", path="new.txt"), *WORK[1:]]
    result = await ours.run(script, wire=wire, policy="all")
    assert result.ok, result.error
    assert (workspace / "copy.txt").read_text() == "second line\n"
    assert "first line" in str(ours.requests[2].tool_results)


def declaring(tools: dict[str, list[str]], *, system: str = "") -> Request:
    declared: list[Json] = [
        {"name": name, "input_schema": {"properties": {key: {} for key in names}}}
        for name, names in tools.items()
    ]
    return Request(
        lane="default",
        method="messages",
        model="m",
        path="/",
        headers=RequestHeaders(),
        body={"tools": declared},
        system=system,
        tools=tuple(tools),
    )


CLAUDE = {"Read": ["file_path"], "Write": ["file_path", "content"]}


def test_a_tool_that_the_agent_hides_is_called_by_its_own_name() -> None:
    made = translated(Call("shell", {"command": "id"}), declaring(CLAUDE))
    assert (made.name, made.args["command"]) == ("Bash", "id")


def test_tools_of_one_name_are_told_apart_by_their_parameters() -> None:
    write = Call("write_file", {"path": "a.txt", "content": "x"}, id="7")
    one = translated(write, declaring({"write": ["filePath", "content"]}))
    other = translated(write, declaring({"write": ["path", "content"]}))
    assert (one.name, one.args, one.id) == ("write", {"filePath": "a.txt", "content": "x"}, "7")
    assert (other.name, other.args) == ("write", {"path": "a.txt", "content": "x"})


@pytest.mark.parametrize(
    ("name", "args", "tools"),
    [
        ("write_file", {"path": "a", "content": "x"}, {"write_file": ["path", "content"]}),
        ("write_file", {"file_path": "a", "content": "x"}, {"write_file": ["file_path"]}),
        ("weather", {"city": "Ghent"}, CLAUDE),
        ("shell", {"command": "id"}, {"weather": ["city"]}),
        ("shell", {"command": "id"}, {}),
    ],
)
def test_other_calls_are_sent_as_they_are(
    name: str, args: dict[str, Json], tools: dict[str, list[str]]
) -> None:
    assert translated(Call(name, args), declaring(tools)) == Call(name, args)


@pytest.mark.parametrize(
    ("text", "handed_in"),
    [
        ('{"size": 3}', {"size": 3}),
        ('It is {x}:\n```json\n{"size": 3}\n```', {"size": 3}),
        ('{"size": "three"}', None),
        ("It is {3}.", None),
        ("", None),
    ],
)
def test_a_text_with_a_value_is_a_call_of_the_tool_that_takes_it(
    text: str, handed_in: Json
) -> None:
    schema: Json = {"type": "object", "properties": {"size": {"type": "integer"}}}
    tools: list[Json] = [{"name": "StructuredOutput", "input_schema": schema}]
    request = msgspec.structs.replace(declaring({}), body={"tools": tools})
    turn = Turn(text=(text[:3], text[3:]))
    made = as_typed_output(turn, request)
    calls = [] if handed_in is None else [Call("StructuredOutput", {"size": 3})]
    assert list(made.calls) == calls
    assert made.text == (turn.text if handed_in is None else ())
    assert as_typed_output(turn, declaring(CLAUDE)) == turn


def test_a_tool_that_needs_an_absolute_path_gets_it_from_the_request(tmp_path: Path) -> None:
    request = declaring(
        {"editor": ["path", "new_text", "old_text"], "run_commands": ["commands"]},
        system=f"The folder /none. Current Working Directory: {tmp_path}\nBe brief.",
    )
    made = translated(Call("write_file", {"path": "a.txt", "content": "x"}), request)
    assert made.args["path"] == str(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("restart", "expected"),
    [
        ("at_end", ["1", "2", "1", "2"]),
        ("per_conversation", ["1", "1", "2", "2"]),
    ],
)
def test_a_script_starts_over(restart: Restart, expected: list[str]) -> None:
    cursor = Cursor([say("1"), say("2")], restart)
    new = _answered(declaring({}), 0)
    later = _answered(new, 1)
    served = [cursor.take(request) for request in (new, new, later, later)]
    assert [turn.text for turn in served if turn is not None] == [(text,) for text in expected]


def _answered(request: Request, times: int) -> Request:
    history = (Message("user", ("hi",)), *(Message("model", ("x",)) for _ in range(times)))
    return msgspec.structs.replace(request, history=history)


def test_a_repeated_request_after_a_fault_is_the_same_conversation() -> None:
    cursor = Cursor([Turn(status=429), say("1"), say("2")], "per_conversation")
    new = _answered(declaring({}), 0)
    turns = [cursor.take(new), cursor.take(new), cursor.take(_answered(new, 1)), cursor.take(new)]
    assert [turn and (turn.status, turn.text) for turn in turns] == [
        (429, ()),
        (None, ("1",)),
        (None, ("2",)),
        (429, ()),
    ]


def test_a_script_that_never_starts_over_ends() -> None:
    cursor = Cursor([say("1")])
    assert cursor.take(declaring({})) is not None
    assert cursor.take(declaring({})) is None


def test_restart_is_a_key_of_the_file() -> None:
    assert Script.parse('restart = "at_end"').restart == "at_end"
    with pytest.raises(errors.ConfigError, match="restart must be one of never, at_end"):
        Script.parse('restart = "sometimes"')


async def test_the_example_script_works_with_two_agents_at_once(workspace: Path) -> None:
    script = Script.parse(EXAMPLE.format(name="fake.toml"))
    async with ModelServer(script) as model:
        for wire in ("gemini", "anthropic"):
            result = await corral.run(
                prompt="Write a greeting",
                model=MODELS[wire],
                policy="edits",
                cwd=workspace,
                env=model.env,
            )
            assert result.ok, result.error
            assert result.text.endswith("I wrote greeting.txt.")
        assert model.failures == []
    assert (workspace / "greeting.txt").read_text() == "Hello from a scripted model.\n"


def test_a_tool_that_an_agent_lacks_is_a_command_of_its_shell() -> None:
    shell = declaring({"exec_command": ["cmd"], "apply_patch": ["input"]})
    made = translated(Call("read_file", {"path": "my file.txt"}), shell)
    assert (made.name, made.args) == ("exec_command", {"cmd": "cat 'my file.txt'"})


def test_a_patch_has_complete_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\nthe first line\n")
    request = declaring({"apply_patch": ["input"]}, system=f"working directory: {tmp_path}")
    edit = Call("edit_file", {"path": "a.txt", "old": "first", "new": "second"})
    patch = str(translated(edit, request).args["input"])
    assert "-the first line\n+the second line\n" in patch


def test_a_tool_in_code_is_called_by_a_program() -> None:
    described = "declare const tools: { exec_command(args: {cmd: string}): Promise<unknown>; };"
    body: dict[str, Json] = {"tools": [{"name": "exec", "description": described}]}
    request = msgspec.structs.replace(declaring({}), body=body)
    made = translated(Call("shell", {"command": "id"}), request)
    code = 'text(await tools.exec_command({"cmd": "id"}))'
    assert (made.name, made.args) == ("exec", {"input": code})
    own = translated(Call("weather", {"city": "Ghent"}), request)
    assert own.args == {"input": 'text(await tools.mcp__corral__weather({"city": "Ghent"}))'}


@pytest.mark.parametrize(
    "offered", ["mcp__corral__weather", "mcp_corral_weather", "corral_weather", "corral-weather"]
)
def test_a_function_of_the_run_is_called_by_its_own_name(offered: str) -> None:
    made = translated(Call("weather", {"city": "Ghent"}), declaring({offered: ["city"]}))
    assert (made.name, made.args) == (offered, {"city": "Ghent"})


@pytest.mark.parametrize("name", ["wether", "edit_file"])
async def test_a_call_that_no_tool_takes_ends_the_run_with_its_name(
    ours: BuiltinAgent, name: str
) -> None:
    script = [call(name, city="Ghent"), say("done")]
    result = await ours.run(script, policy="reads")
    if name == "wether":
        assert not result.ok
        assert result.error is not None
        assert "no tool takes the call wether(city)" in result.error.message
    else:
        assert result.ok  # a tool that the policy hides: its refusal is the test
