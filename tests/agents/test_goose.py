"""goose: what is refused, or left out, before it is started."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, launch_of

from corral import Policy, errors
from corral._agents import registry
from corral._agents.goose import CONFIG, NEVER, OFF
from corral._agents.spec import LaunchContext
from corral.options import RunOptions

AGENT = registry.find("goose")
KEY = "a-key-of-a-service"
PLACE = LaunchContext(
    program=("goose",),
    version=None,
    **NOT_COMPILED,
    cwd="/repo",
    home="/home",
    tmp="/tmp",
    env={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://there/v1"},
)
WITH_MODEL = RunOptions.build("goose", {"model": "scripted"})


@pytest.mark.parametrize(
    ("policy", "interactive", "wanted"),
    [
        (Policy(), False, {"tree"}),
        (Policy(), True, {"tree", "write", "edit", "shell"}),
        (Policy.edits(), False, {"tree", "write", "edit"}),
        (Policy(read="deny", write="deny", shell="deny"), True, set[str]()),
        (Policy(allow_tools=("write",)), True, {"write"}),
        (Policy(deny_tools=("write",)), True, {"tree", "edit", "shell"}),
        (Policy.all(), False, {"tree", "write", "edit", "shell"}),
        (Policy.native(), False, {"tree", "write", "edit", "shell"}),
    ],
)
def test_only_what_the_policy_does_not_deny_is_offered(
    policy: Policy, interactive: bool, wanted: set[str]
) -> None:
    run = replace(RunOptions.build("goose", {"policy": policy}), interactive=interactive)
    extensions = json.loads(compile_policy(AGENT, policy, run).controls.files[CONFIG])["extensions"]
    assert {name for name, each in extensions.items() if each["enabled"]} <= {"developer"}
    assert {*OFF} < {*extensions}
    developer = extensions["developer"]
    assert developer["enabled"] == bool(wanted)
    assert {*developer.get("available_tools", ())} == wanted
    assert not wanted & {*NEVER}


def test_it_starts_in_its_private_home_and_reads_no_files_of_the_repository() -> None:
    launch = launch_of(AGENT, WITH_MODEL, PLACE, "hi", None)
    assert launch.argv == ("goose", "acp")
    assert (launch.cwd, launch.env["HOME"], launch.env["CONTEXT_FILE_NAMES"]) == (
        ("/home", "/home", "[]")
    )
    assert (launch.env["GOOSE_PROVIDER"], launch.env["GOOSE_MODE"]) == ("openai", "approve")
    assert launch.service_url == "http://there/v1"
    assert KEY not in str(launch)
    trusted = RunOptions.build("goose", {"model": "scripted", "inherit": "project"})
    launch = launch_of(AGENT, trusted, PLACE, "hi", None)
    assert launch.cwd is None
    assert "CONTEXT_FILE_NAMES" not in launch.env


def test_the_first_key_that_is_set_chooses_the_service() -> None:
    env = {**PLACE.env, "ANTHROPIC_API_KEY": KEY}
    launch = launch_of(AGENT, WITH_MODEL, replace(PLACE, env=env), "hi", None)
    assert launch.env["GOOSE_PROVIDER"] == "anthropic"
    assert launch.service_url == "https://api.anthropic.com"


def test_without_a_model_or_a_key_it_is_refused_before_the_start() -> None:
    with pytest.raises(errors.ConfigError, match="no default model"):
        launch_of(AGENT, RunOptions.build("goose", {}), PLACE, "hi", None)
    by_variable = replace(PLACE, env={**PLACE.env, "GOOSE_MODEL": "mine"})
    launch = launch_of(AGENT, RunOptions.build("goose", {}), by_variable, "hi", None)
    assert launch.env["GOOSE_MODEL"] == "mine"
    with pytest.raises(errors.AuthenticationFailed, match="no credentials for goose"):
        launch_of(AGENT, WITH_MODEL, replace(PLACE, env={}), "hi", None)
