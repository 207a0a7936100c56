"""Model calls of a process with several prompts are assigned to the right one, or to none."""

from __future__ import annotations

import asyncio

import msgspec
from support.model_calls import FORMATS

from corral._metering.call_log import CallLog
from corral._metering.calls import MeteredCall, ModelRequest, read_request
from corral._models.registry import find_provider
from corral._protocol.ndjson import RawEvent
from corral.events import CALLS_NOT_ASSIGNED, Error, ModelCall

LONG = "Review the file named a.py please"


class Prompt:
    def __init__(self, log: CallLog, session_id: str, text: str) -> None:
        self.items: list[RawEvent] = []
        self.emit_method = self.emit
        log.add(self.emit_method, session_id, text)

    def emit(self, item: RawEvent) -> None:
        self.items.append(item)

    @property
    def calls(self) -> int:
        return sum(isinstance(item, ModelCall) for item in self.items)

    @property
    def warnings(self) -> list[str]:
        return [item.code for item in self.items if isinstance(item, Error)]


def body(*texts: str) -> bytes:
    return msgspec.json.encode({"contents": [{"parts": [{"text": text}]} for text in texts]})


def call(log: CallLog, *request: bytes) -> None:
    owner = log.on_start(request)
    log.on_call(MeteredCall(request=model_request(), model="m", status=200, owner=owner))


def model_request() -> ModelRequest:
    made = FORMATS["gemini"]
    data = msgspec.json.encode(made.body)
    found = read_request([find_provider("gemini")], "POST", made.endpoint, data)
    assert isinstance(found, ModelRequest)
    return found


async def test_a_call_belongs_to_the_prompt_whose_session_or_text_it_contains() -> None:
    log = CallLog()
    first, second = Prompt(log, "session-1", LONG), Prompt(log, "session-2", "ok")
    call(log, b"x-session: session-2\n", body("anything"))
    call(log, b"", body("the context", f"<now>12:00</now> {LONG}"))
    call(log, b"", body("is that ok?", LONG))  # the words of a short prompt are anywhere
    call(log, b"", body("ok"))
    assert (first.calls, second.calls) == (2, 2)
    assert first.warnings == second.warnings == []


async def test_a_prompt_that_contains_another_one_is_told_apart() -> None:
    log = CallLog()
    short, long = Prompt(log, "", LONG), Prompt(log, "", f"{LONG}, and then b.py")
    call(log, b"", body(f"{LONG}, and then b.py"))
    call(log, b"", body(LONG))
    assert (short.calls, long.calls) == (1, 1)


async def test_a_call_that_may_belong_to_several_prompts_is_assigned_to_none() -> None:
    log = CallLog()
    same = [Prompt(log, "", LONG), Prompt(log, "", LONG)]
    call(log, b"", body(LONG))
    call(log, b"", body("a sub-agent without the prompt"))
    assert [each.calls for each in same] == [0, 0]
    assert [each.warnings for each in same] == [[CALLS_NOT_ASSIGNED]] * 2
    log.remove(same[1].emit_method)
    call(log, b"", body("anything"))  # now there is only one
    assert [each.calls for each in same] == [1, 0]


async def test_a_prompt_waits_for_its_call_that_has_not_ended() -> None:
    log = CallLog()
    prompt = Prompt(log, "", LONG)
    owner = log.on_start([body(LONG)])
    waiting = asyncio.create_task(log.wait_for_calls(prompt.emit_method))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    log.on_call(MeteredCall(request=model_request(), model="m", status=200, owner=owner))
    await waiting
    assert prompt.calls == 1


async def test_a_response_with_the_key_is_a_warning_of_its_prompt() -> None:
    log = CallLog()
    first, second = Prompt(log, "session-1", LONG), Prompt(log, "session-2", "ok")
    log.on_key(log.on_start([b"session-2"]))
    assert (first.warnings, second.warnings) == ([], ["key_in_response"])
    log.on_key(None)
    assert (first.warnings, second.warnings) == (["key_in_response"], ["key_in_response"] * 2)
