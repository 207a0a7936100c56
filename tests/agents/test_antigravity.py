"""Antigravity: what is refused, or left out, before it is started; and its errors."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, explained, launch_of

from corral import Policy, errors
from corral._agents import registry
from corral._agents.antigravity.spec import REFUSED
from corral._agents.spec import LaunchContext
from corral._protocol.ndjson import TurnEnd
from corral.options import RunOptions

AGENT = registry.find("antigravity")
KEY = "a-key-of-a-service"
PLACE = LaunchContext(
    program=("python", "bridge", "/lib"),
    version=None,
    **NOT_COMPILED,
    cwd="/repo",
    home="/home",
    tmp="/tmp",
    env={"GEMINI_API_KEY": KEY},
)
READS = {"view_file", "list_directory", "search_directory", "find_file"}
WRITES = {"create_file", "edit_file"}
WEB = {"read_url_content", "search_web"}
EVERY = READS | WRITES | WEB | {"shell"}


@pytest.mark.parametrize(
    ("policy", "interactive", "wanted"),
    [
        (Policy(), False, READS),
        (Policy(), True, EVERY),
        (Policy.edits(), False, READS | WRITES),
        (Policy(read="deny", write="deny", shell="deny", network="deny"), True, set[str]()),
        (Policy(allow_tools=("create_file",)), True, {"create_file"}),
        (Policy(deny_tools=("shell",)), True, EVERY - {"shell"}),
        (Policy.all(), False, EVERY),
        (Policy.native(), False, EVERY),
    ],
)
def test_only_what_the_policy_does_not_deny_is_offered(
    policy: Policy, interactive: bool, wanted: set[str]
) -> None:
    run = replace(RunOptions.build("antigravity", {"policy": policy}), interactive=interactive)
    tools = compile_policy(AGENT, policy, run).controls.settings["tools"]
    assert isinstance(tools, list)
    assert {*map(str, tools)} == wanted


def test_it_starts_in_its_private_home_and_gets_no_key_on_the_command_line() -> None:
    run = RunOptions.build("antigravity", {"retries": 2})
    launch = launch_of(AGENT, run, PLACE, "hi", None)
    assert (launch.cwd, launch.env["HOME"]) == ("/home", "/home")
    *program, settings = launch.argv
    assert program == ["python", "bridge", "/lib"]
    assert KEY not in str(launch)
    found = json.loads(settings)
    assert (found["model"], found["retries"]) == ("gemini-2.5-flash", 2)
    assert found["folder"].startswith("/home/")
    assert launch.service_url == "https://generativelanguage.googleapis.com"
    elsewhere = {**PLACE.env, "GOOGLE_GEMINI_BASE_URL": "http://there"}
    launch = launch_of(AGENT, run, replace(PLACE, env=elsewhere), "hi", None)
    assert launch.service_url == "http://there"


def test_only_a_key_is_taken() -> None:
    run = RunOptions.build("antigravity", {})
    with pytest.raises(errors.AuthenticationFailed, match="no credentials for Antigravity"):
        launch_of(AGENT, run, replace(PLACE, env={}), "hi", None)
    signed_in = RunOptions.build("antigravity", {"auth": "subscription"})
    with pytest.raises(errors.ConfigError, match="API key only"):
        launch_of(AGENT, signed_in, PLACE, "hi", None)


def test_a_prompt_that_it_does_not_take_is_reported_as_rejected() -> None:
    finish = TurnEnd(ok=False, kind=REFUSED, message="U+001B is a control character")
    assert isinstance(explained(AGENT, finish, None), errors.InputRejected)
