"""How MCP servers get their variables: from a program that starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from corral import McpServer
from corral._agents.shared.launch import (
    secret_name,
    secret_variables,
    server_command,
    variable_references,
)

SHOW = (sys.executable, "-c", "import json, os; print(json.dumps({**os.environ}))")
KEY = "0123456789abcdef"


def test_each_server_gets_its_own_variables_under_their_own_names() -> None:
    """Also where the agent passes all its variables on to each server."""
    odd = {
        "a.b": "dotted",
        "a_b": "ü\udcff",
        "A_B": "$HOME ${PATH}",
        "http_proxy": "",
        "x" * 99: "y",
    }
    given = {"one": {"OPENAI_API_KEY": "of-one", "HOME": "/one", **odd}, "two": {"HOME": "/two"}}
    servers = [
        *(McpServer(name, SHOW, env=env) for name, env in given.items()),
        McpServer("three", SHOW),
        McpServer("far", url="http://x", headers={"Authorization": "bearer"}),
    ]
    base = {"PATH": os.environ["PATH"], "HOME": "/usual", "LC_ALL": "C"}
    agent = {**base, **secret_variables(servers, KEY)}
    usual = subprocess.run(SHOW, env=base, capture_output=True, check=True).stdout
    for number, server in enumerate(servers[:3]):
        argv = server_command(number, servers, KEY)
        done = subprocess.run(argv, env=agent, capture_output=True, check=True)
        assert json.loads(done.stdout) == {**json.loads(usual), **server.env}


def test_variables_of_servers_are_enciphered_in_those_of_the_agent() -> None:
    """A file has the key, and the environment the rest."""
    servers = [McpServer("one", SHOW, env={"TOKEN": "canary-token"})]
    variables = secret_variables(servers, KEY)
    (references,) = variable_references(0, servers[0]).values()
    assert references == "${" + secret_name(0, "TOKEN") + "}"
    for text in (str(variables), str(server_command(0, servers, KEY))):
        assert "canary" not in text
        assert b"canary-token".hex() not in text
    assert variables != secret_variables(servers, "another")


def test_names_of_variables_and_headers_are_not_mixed_up() -> None:
    names = ["a.b", "a_b", "a-b", "A_B", "a_2e_b", "ab", "a__b", "http_proxy", "HTTP_PROXY"]
    assert len({secret_name(number, name) for number in (0, 1, 10) for name in names}) == 27


def test_servers_without_secrets_are_started_as_they_are() -> None:
    assert server_command(0, [McpServer("one", ("notes", "--x"))], KEY) == ("notes", "--x")
