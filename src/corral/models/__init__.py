"""Models through the APIs of their vendors, with one client for all.

::

    answer = await corral.models.generate("gemini:gemini-2.5-flash", "Say hello")
    print(answer.text)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.errors import NoObject as NoObjectError
    from corral.inference.api import (
        GenerationStream,
        SyncGenerationStream,
        generate,
        generate_sync,
        stream,
        stream_sync,
    )
    from corral.inference.client import Client, ResponseStream, set_default_client
    from corral.inference.fallback import Fallback
    from corral.inference.middleware import Middleware
    from corral.inference.results import Generation, Step
    from corral.inference.structured import (
        ObjectStream,
        generate_object,
        generate_object_sync,
        stream_object,
    )
    from corral.messages import (
        Audio,
        Document,
        Image,
        Message,
        RedactedThinking,
        Text,
        Thinking,
        ToolCall,
        ToolResult,
    )
    from corral.model_types import (
        Failed,
        Finish,
        FinishReason,
        ProviderEvent,
        RateLimit,
        Request,
        Response,
        ResponseFormat,
        Start,
        StepFinish,
        StreamEvent,
        TextDelta,
        TextEnd,
        TextStart,
        ThinkingDelta,
        ThinkingEnd,
        ThinkingStart,
        ToolCallDelta,
        ToolCallEnd,
        ToolCallStart,
        ToolDone,
        ToolNamed,
        ToolSpec,
    )
    from corral.models import catalogue
    from corral.models.spec import Provider, Traits, Wire
    from corral.values import Cost, Usage

_HOMES = {
    "corral.values": "Cost Usage",
    "corral.model_types": "Failed Finish FinishReason ProviderEvent RateLimit Request Response"
    " ResponseFormat Start StepFinish StreamEvent TextDelta TextEnd TextStart ThinkingDelta"
    " ThinkingEnd ThinkingStart ToolCallDelta ToolCallEnd ToolCallStart ToolDone ToolNamed"
    " ToolSpec",
    "corral.inference.client": "Client ResponseStream set_default_client",
    "corral.inference.api": "GenerationStream SyncGenerationStream generate generate_sync stream"
    " stream_sync",
    "corral.inference.fallback": "Fallback",
    "corral.inference.middleware": "Middleware",
    "corral.inference.structured": "ObjectStream generate_object generate_object_sync"
    " stream_object",
    "corral.inference.results": "Generation Step",
    "corral.messages": "Audio Document Image Message RedactedThinking Text Thinking ToolCall"
    " ToolResult",
    "corral.models.spec": "Provider Traits Wire",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Audio",
    "Client",
    "Cost",
    "Document",
    "Failed",
    "Fallback",
    "Finish",
    "FinishReason",
    "Generation",
    "GenerationStream",
    "Image",
    "Message",
    "Middleware",
    "NoObjectError",
    "ObjectStream",
    "Provider",
    "ProviderEvent",
    "RateLimit",
    "RedactedThinking",
    "Request",
    "Response",
    "ResponseFormat",
    "ResponseStream",
    "Start",
    "Step",
    "StepFinish",
    "StreamEvent",
    "SyncGenerationStream",
    "Text",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "Thinking",
    "ThinkingDelta",
    "ThinkingEnd",
    "ThinkingStart",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolDone",
    "ToolNamed",
    "ToolResult",
    "ToolSpec",
    "Traits",
    "Usage",
    "Wire",
    "catalogue",
    "generate",
    "generate_object",
    "generate_object_sync",
    "generate_sync",
    "set_default_client",
    "stream",
    "stream_object",
    "stream_sync",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "NoObjectError":
        value: object = import_module("corral.errors").NoObject
    elif name == "catalogue":
        value = import_module("corral.models.catalogue")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'corral.models' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
