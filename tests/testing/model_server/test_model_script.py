from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corral.errors import ConfigError
from corral.testing import Call, Expect, Script, Turn, call, fail, hang, say

EXAMPLE = """
[[turn]]
text = "I will read."
[[turn.call]]
name = "read_file"
args = { file_path = "a.txt" }
[[turn]]
text = ["Do", "ne."]
usage = { input = 100, output = 20 }
expect = { tools = "read_file", no_tools = ["rm"] }
[[lane.other.turn]]
status = 429
retry_after = 1
"""

TURNS = [
    Turn(text="I will read.", calls=[Call("read_file", {"file_path": "a.txt"})]),
    Turn(
        text=["Do", "ne."],
        usage={"input": 100, "output": 20},
        expect=Expect(tools="read_file", no_tools=["rm"]),
    ),
]


def test_a_toml_file_is_turns_and_lanes(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(EXAMPLE)
    script = Script.load(path)
    assert list(script.turns) == TURNS
    assert {name: list(turns) for name, turns in script.lanes.items()} == {
        "other": [fail(429, retry_after=1)]
    }


def test_a_json_script_is_equal_to_the_toml_script(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    read = {"name": "read_file", "args": {"file_path": "a.txt"}}
    done = {
        "text": ["Do", "ne."],
        "usage": {"input": 100, "output": 20},
        "expect": {"tools": "read_file", "no_tools": ["rm"]},
    }
    path.write_text(json.dumps({"turn": [{"text": "I will read.", "calls": [read]}, done]}))
    assert list(Script.load(path).turns) == TURNS


def test_the_helper_functions_make_turns() -> None:
    assert say("Do", "ne.") == Turn(text=("Do", "ne."))
    assert call("glob", pattern="*") == Turn(calls=[Call("glob", {"pattern": "*"})])
    assert fail(429, quota_id="PerDay", times=2).repeat == 2
    assert hang() == Turn(hang=True)
    assert hang("Well").hang == "after"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[[turn]]\ntext = = 1\n", "a.toml:2:8: Invalid value"),
        ("a.toml", "[[turn]]\ntext =", "a.toml:2:7: Invalid value"),
        ("a.json", '{"turn": [\n  oops]}', "a.json:2:3: Expecting value"),
        ("a.json", "[]", "a.json: a script is a table with [[turn]] entries"),
        ("a.toml", "turns = []", "a.toml: unknown key 'turns', did you mean 'turn'?"),
        ("a.toml", "turn = 3", "a.toml: turn must be a list of tables: [[turn]]"),
        ("a.toml", "turn = [3]", "a.toml: turn 1: a turn must be a table"),
        ("a.toml", "lane = 3", "a.toml: lane must be a table: [[lane.NAME.turn]]"),
        ("a.toml", "lane.x = 3", "a.toml: lane 'x' must be a table: [[lane.x.turn]]"),
        (
            "a.toml",
            "[[turn]]\n[[turn]]\n[[turn]]\ntxt = 'x'",
            "a.toml: turn 3: unknown key 'txt', did you mean 'text'?",
        ),
        (
            "a.toml",
            "[[lane.b.turn]]\nstatus = 'x'",
            "a.toml: lane 'b', turn 1: status: expected `int | null`, got `str`",
        ),
        (
            "a.toml",
            "[[turn]]\n[[turn.call]]\nnam = 'x'",
            "a.toml: turn 1: call 1: unknown key 'nam', did you mean 'name'?",
        ),
        (
            "a.toml",
            "[[turn]]\n[[turn.call]]\nargs = {}",
            "a.toml: turn 1: calls[0]: object missing required field `name`",
        ),
        (
            "a.toml",
            "[[turn]]\nexpect = { tool = 'x' }",
            "a.toml: turn 1: expect: unknown key 'tool', did you mean 'tools'?",
        ),
        (
            "a.toml",
            "[[turn]]\nusage = { inputs = 1 }",
            "a.toml: turn 1: usage: unknown key 'inputs', did you mean 'input'?",
        ),
        ("a.toml", "[[turn]]\nstatus = 200", "a.toml: turn 1: status must be an HTTP error"),
        ("a.toml", "[[turn]]\nstatus = 500\ntext = 'x'", "a.toml: turn 1: a turn with a status"),
        ("a.toml", "[[turn]]\nlate = true\ntext = 'x'", "a.toml: turn 1: a late error needs"),
        ("a.toml", "[[turn]]\nrepeat = 0", "a.toml: turn 1: repeat must be 1 or more"),
        ("a.toml", "[[turn]]\nmalformed = 1", "a.toml: turn 1: malformed must be text or bytes"),
        ("a.toml", "[[turn]]\nusage = true", "a.toml: turn 1: usage must be a table"),
        ("a.toml", "[[turn]]\ncut = -1", "a.toml: turn 1: cut cannot be negative"),
        ("a.toml", "[[turn]]\npattern = '('", "a.toml: turn 1: pattern '('"),
    ],
)
def test_an_invalid_script_file_is_an_error_with_its_position(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Script.load(path)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_a_missing_script_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the script .*: No such file") as refused:
        Script.load(tmp_path / "none.toml")
    assert "corral fake new" in str(refused.value.hint)


def test_importing_the_package_loads_neither_asyncio_nor_msgspec() -> None:
    code = "import sys, corral.testing; print({'asyncio', 'msgspec'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ran.stdout == "set()\n", ran.stderr


def test_every_public_name_can_be_loaded_and_no_other() -> None:
    import corral.testing

    assert all(getattr(corral.testing, name) for name in dir(corral.testing))
    with pytest.raises(AttributeError, match="Sever"):
        _ = corral.testing.Sever
