"""Questions of ACP agents: forms come in as commands, answers go out as replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral._protocol.acp.client import (
    AcpClient,
    AcpQuestion,
    Command,
    Emit,
    Offer,
    PermissionWithdrawn,
)
from corral._protocol.acp.frames import TextBlock
from corral._protocol.jsonrpc import SendBytes
from corral.events import Vendor

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def ask(id: Any = 0, session: str = "s", **more: Any) -> bytes:
    params = {"sessionId": session, "mode": "form", "message": "Who?", "requestedSchema": FORM}
    return line(id=id, method="elicitation/create", params={**params, **more})


def sent(command: Command) -> Any:
    assert isinstance(command, SendBytes)
    return json.loads(command.data)


def asked(acp: AcpClient, **more: Any) -> AcpQuestion:
    (command,) = acp.receive(ask(**more))
    assert isinstance(command, AcpQuestion)
    return command


def test_a_form_is_a_question_and_its_answer_a_reply() -> None:
    acp = AcpClient()
    question = asked(acp, toolCallId="call-1")
    assert question.question.title == "Who?"
    assert question.question.call_id == "call-1"
    assert [field.key for field in question.question.fields] == ["name"]
    (reply,) = acp.answer_question(0, {"name": "me"})
    assert sent(reply) == {
        "jsonrpc": "2.0",
        "id": 0,
        "result": {"action": "accept", "content": {"name": "me"}},
    }
    assert acp.answer_question(0, {"name": "me"}) == []


def test_a_question_without_an_answer_is_declined() -> None:
    acp = AcpClient()
    asked(acp)
    (reply,) = acp.answer_question(0, None)
    assert sent(reply)["result"] == {"action": "decline"}


def test_cancel_answers_open_questions_after_the_notification() -> None:
    acp = AcpClient()
    acp.prompt("s", [TextBlock("go")])
    asked(acp)
    note, reply, withdrawn = acp.cancel("s")
    assert sent(note)["method"] == "session/cancel"
    assert sent(reply)["result"] == {"action": "cancel"}
    assert withdrawn == PermissionWithdrawn("s", 0)


def test_the_end_of_the_turn_or_process_withdraws_questions() -> None:
    acp = AcpClient()
    id, _ = acp.prompt("s", [TextBlock("go")])
    asked(acp)
    commands = acp.receive(line(id=id, result={"stopReason": "end_turn"}))
    assert PermissionWithdrawn("s", 0) in commands
    assert acp.answer_question(0, {}) == []
    asked(acp)
    assert PermissionWithdrawn("s", 0) in acp.end()


def test_the_agent_takes_a_question_back() -> None:
    acp = AcpClient()
    asked(acp)
    reply, withdrawn = acp.receive(line(method="$/cancel_request", params={"requestId": 0}))
    assert sent(reply)["error"]["code"] == -32800
    assert withdrawn == PermissionWithdrawn("s", 0)
    other = acp.receive(line(method="$/cancel_request", params={"requestId": 0}))
    assert other == [Emit(None, [Vendor("$/cancel_request", {"requestId": 0})])]


def test_a_page_to_open_is_declined() -> None:
    (reply,) = AcpClient().receive(ask(mode="url", url="https://example.com", elicitationId="1"))
    assert sent(reply)["result"] == {"action": "decline"}


def test_an_id_in_use_is_rejected() -> None:
    acp = AcpClient()
    asked(acp)
    commands = acp.receive(ask())
    assert not any(isinstance(command, AcpQuestion) for command in commands)
    assert sent(commands[0])["error"]["code"] == -32600


@pytest.mark.parametrize("schema", [None, 3, {"properties": []}])
def test_a_form_that_cannot_be_understood_has_no_fields(schema: Any) -> None:
    assert asked(AcpClient(), requestedSchema=schema).question.fields == ()


def test_forms_are_offered_only_if_someone_can_answer() -> None:
    _, line = AcpClient().initialize(Offer(questions=True))
    assert json.loads(line)["params"]["clientCapabilities"]["elicitation"] == {"form": {}}
    assert b"elicitation" not in AcpClient().initialize(Offer())[1]
