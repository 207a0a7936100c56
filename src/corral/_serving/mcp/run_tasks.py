"""Runs as tasks of the extension ``io.modelcontextprotocol/tasks``: the id of a task is that of its
run. What a run asks its caller becomes an elicitation, for clients that have them."""

from __future__ import annotations

from corral._publishing.records import Pending
from corral._serving.allowance import AnswerRequest
from corral._serving.caller_runs import CallerRun, RunView
from corral._serving.mcp import wire
from corral._serving.mcp.tools import shown
from corral._system import clock
from corral.errors import ConfigError
from corral.events import QuestionField
from corral.values import Json, JsonObject, as_object, as_text

POLL_INTERVAL = 1000
"""Milliseconds."""
GRACE = 1.0
"""Seconds in which a run may end before it becomes a task."""


async def task_of(view: RunView, call: wire.McpCall) -> JsonObject:
    """What ``tasks/get`` returns for a run."""
    now = clock.now()
    started = now - view.seconds
    task: JsonObject = {
        "taskId": view.run,
        "status": "working",
        "statusMessage": view.activity or view.state,
        "createdAt": clock.iso_time(started),
        "lastUpdatedAt": clock.iso_time(now),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL,
    }
    if view.outcome is not None:
        if view.outcome.status == "interrupted":
            return {**task, "status": "cancelled", "statusMessage": view.outcome.error}
        return {**task, "status": "completed", "result": await shown(view)}
    if view.pending and call.takes_elicitation:
        asked: JsonObject = {_key(each): _elicitation(each) for each in view.pending}
        return {**task, "status": "input_required", "inputRequests": asked}
    if view.pending:
        task["statusMessage"] = "it asks something: call the tool answer"
    return task


def answer(run: CallerRun, responses: Json) -> None:
    """Pass on the answers of ``tasks/update``; one to nothing that is open is ignored. Raises
    ``ConfigError`` for one that does not fit, and ``NotPermitted``."""
    for asked in run.view.pending:
        if (given := as_object(responses).get(_key(asked))) is not None:
            run.answer(_read(run.id, asked, as_object(given)))


def _key(asked: Pending) -> str:
    """Unique in the life of a task: an agent may use an id again."""
    return asked.key or asked.request_id


def _read(run: str, asked: Pending, given: JsonObject) -> AnswerRequest:
    action, content = as_text(given.get("action")), as_object(given.get("content"))
    if action not in ("accept", "decline", "cancel"):
        raise ConfigError(f"the action must be accept, decline or cancel, got: {action!r}")
    id = asked.request_id
    if action != "accept":
        return AnswerRequest(run=run, request_id=id, decision="deny")
    if asked.kind == "permission":
        allowed = content.get("decision") == "allow_once"
        return AnswerRequest(run=run, request_id=id, decision="allow_once" if allowed else "deny")
    if len(asked.fields) == 1 and isinstance(text := content.get(asked.fields[0].key), str):
        return AnswerRequest(run=run, request_id=id, text=text)
    return AnswerRequest(run=run, request_id=id, answers=content)


def _elicitation(asked: Pending) -> JsonObject:
    properties: JsonObject = {field.key: _schema(field) for field in asked.fields}
    required: list[Json] = [field.key for field in asked.fields if field.required]
    if asked.kind == "permission":
        properties = {"decision": {"type": "string", "enum": ["allow_once", "deny"]}}
        required = ["decision"]
    schema: JsonObject = {"type": "object", "properties": properties, "required": required}
    params: JsonObject = {"mode": "form", "message": asked.title, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def _schema(field: QuestionField) -> JsonObject:
    kind = "string" if field.type == "text" else field.type
    labels: list[Json] = [option.label for option in field.options]
    schema: JsonObject = {
        "type": kind,
        "title": field.header or field.key,
        "description": field.text,
    }
    if labels and field.free_text:
        schema["description"] = f"{field.text} ({', '.join(map(str, labels))}, or another text)"
    elif labels:
        schema["enum"] = labels
    if field.multiple and not field.free_text:
        items: JsonObject = {"type": "string"}
        if labels:
            items["enum"] = labels
        schema = {"type": "array", "description": field.text, "items": items}
    if field.default is not None:
        schema["default"] = field.default
    return schema
