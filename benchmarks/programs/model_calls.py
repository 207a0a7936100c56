"""Call models of the scripted server with one client: ``model_calls.py WAY PORT CALLS …``.

``CALLS`` is ``WIRE:WHAT:COUNT``. ``WHAT`` says how the events of a stream are sent (see
``model_server.py``), or is ``concurrent``: 100 concurrent completions, repeated until there were
``COUNT``. The figures are CPU seconds of this process for one event or completion, by
``WIRE:WHAT``, after a first small call, which loads modules and opens connections.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, TypeAlias

AT_ONCE = 100
SMALL = 20
"""Pieces of text in a small answer."""
PIECE = 4.5
"""Characters of an average piece."""
KEY = "none-is-needed"

MODELS = {
    "gemini": "gemini-2.5-flash",
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5-mini",
    "chat": "gpt-5-mini",
}

CLEANUPS: list[Callable[[], Awaitable[object]]] = []

Read: TypeAlias = Callable[[str], Awaitable[int]]
"""From a prompt to the number of characters received."""


def corral(wire: str, url: str) -> tuple[Read, Read]:
    from corral.model_types import TextDelta
    from corral.models import Client, generate, stream

    if wire in ("openai", "chat"):
        url += "/v1"
    client = Client(keys={wire: KEY}, base_urls={wire: url}, environ={})
    CLEANUPS.append(client.close)
    model = f"{wire}:{MODELS[wire]}"

    async def streamed(prompt: str) -> int:
        count = 0
        async for event in stream(model, prompt, client=client):
            if type(event) is TextDelta:
                count += len(event.text)
        return count

    async def completed(prompt: str) -> int:
        return len((await generate(model, prompt, client=client)).text)

    return streamed, completed


def genai(_: str, url: str) -> tuple[Read, Read]:
    sdk: Any = import_module("google.genai")
    client = sdk.Client(api_key=KEY, http_options=sdk.types.HttpOptions(base_url=url))
    CLEANUPS.append(client.aio.aclose)  # otherwise it closes itself too early
    models, name = client.aio.models, MODELS["gemini"]

    async def streamed(prompt: str) -> int:
        count = 0
        async for chunk in await models.generate_content_stream(model=name, contents=prompt):
            count += len(chunk.text)
        return count

    async def completed(prompt: str) -> int:
        return len((await models.generate_content(model=name, contents=prompt)).text)

    return streamed, completed


def anthropic(_: str, url: str) -> tuple[Read, Read]:
    sdk: Any = import_module("anthropic")
    client = sdk.AsyncAnthropic(api_key=KEY, base_url=url)

    async def create(prompt: str, *, stream: bool) -> Any:
        return await client.messages.create(
            model=MODELS["anthropic"],
            max_tokens=1000,
            messages=[{"role": "user", "content": prompt}],
            stream=stream,
        )

    async def streamed(prompt: str) -> int:
        count = 0
        async for event in await create(prompt, stream=True):
            if event.type == "content_block_delta":
                count += len(event.delta.text)
        return count

    async def completed(prompt: str) -> int:
        return len((await create(prompt, stream=False)).content[0].text)

    return streamed, completed


def openai(wire: str, url: str) -> tuple[Read, Read]:
    sdk: Any = import_module("openai")
    client = sdk.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1")
    name = MODELS[wire]
    if wire == "chat":
        return _chat(client.chat.completions.create, name)

    async def streamed(prompt: str) -> int:
        count = 0
        async for event in await client.responses.create(model=name, input=prompt, stream=True):
            if event.type == "response.output_text.delta":
                count += len(event.delta)
        return count

    async def completed(prompt: str) -> int:
        return len((await client.responses.create(model=name, input=prompt)).output_text)

    return streamed, completed


def litellm(wire: str, url: str) -> tuple[Read, Read]:
    sdk: Any = import_module("litellm")
    vendor, path = {"gemini": ("gemini", "/v1beta"), "chat": ("openai", "/v1")}.get(
        wire, (wire, "")
    )
    keys = {"api_key": KEY, "api_base": url + path}
    return _chat(sdk.acompletion, f"{vendor}/{MODELS[wire]}", **keys)


def _chat(create: Any, name: str, **keys: str) -> tuple[Read, Read]:
    async def streamed(prompt: str) -> int:
        count, messages = 0, [{"role": "user", "content": prompt}]
        async for chunk in await create(model=name, messages=messages, stream=True, **keys):
            if chunk.choices:
                count += len(chunk.choices[0].delta.content or "")
        return count

    async def completed(prompt: str) -> int:
        messages = [{"role": "user", "content": prompt}]
        answer = await create(model=name, messages=messages, **keys)
        return len(answer.choices[0].message.content)

    return streamed, completed


def limit(wire: str, url: str) -> tuple[Read, Read]:
    module: Any = import_module("model_limit")
    port = int(url.rpartition(":")[2])
    return module.streamed(wire, port), module.completed(wire, port)


def loop_limit(wire: str, url: str) -> tuple[Read, Read]:
    module: Any = import_module("model_limit")
    port = int(url.rpartition(":")[2])
    return module.in_loop(wire, port), module.completed(wire, port)


WAYS: dict[str, Callable[[str, str], tuple[Read, Read]]] = {
    "corral": corral,
    "limit": limit,
    "loop-limit": loop_limit,
    "google-genai": genai,
    "anthropic": anthropic,
    "openai": openai,
    "litellm": litellm,
}


async def concurrent(completed: Read) -> int:
    prompt = f"events={SMALL} packed"
    return sum(await asyncio.gather(*(completed(prompt) for _ in range(AT_ONCE))))


async def measure(streamed: Read, completed: Read, what: str, number: int) -> float:
    received = 0
    if what == "concurrent":
        await concurrent(completed)
        before = time.process_time()
        for _ in range(number // AT_ONCE):
            received += await concurrent(completed)
        expected = number * SMALL * PIECE
    else:
        await streamed("events=10 packed")
        before = time.process_time()
        received = await streamed(f"events={number} {what}")
        expected = number * PIECE
    cpu = time.process_time() - before
    if received != expected:
        raise RuntimeError(f"{received} characters received instead of {expected}")
    return cpu / number


async def main() -> None:
    way, port, *calls = sys.argv[1:]
    clients: dict[str, tuple[Read, Read]] = {}
    figures: dict[str, float] = {}
    for call in calls:
        wire, what, count = call.split(":")
        if wire not in clients:
            clients[wire] = WAYS[way](wire, f"http://127.0.0.1:{port}")
        figures[f"{wire}:{what}"] = await measure(*clients[wire], what, int(count))
    for close in CLEANUPS:
        await close()
    print(json.dumps(figures))


asyncio.run(main())
