# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Models through the APIs of their vendors, with one client for all.

::

    answer = await corral.models.generate("gemini:gemini-2.5-flash", "Say hello")
    print(answer.text)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._inference.api import (
        GenerationStream as GenerationStream,
        SyncGenerationStream as SyncGenerationStream,
        generate as generate,
        generate_sync as generate_sync,
        stream as stream,
        stream_sync as stream_sync,
    )
    from corral._inference.client import (
        Client as Client,
        ResponseStream as ResponseStream,
        set_default_client as set_default_client,
    )
    from corral._inference.results import Fallback as Fallback
    from corral._inference.client import Middleware as Middleware
    from corral._inference.results import Generation as Generation, Step as Step
    from corral._inference.structured import (
        NoObjectError as NoObjectError,
        ObjectStream as ObjectStream,
        generate_object as generate_object,
        generate_object_sync as generate_object_sync,
        stream_object as stream_object,
    )
    from corral.messages import (
        Audio as Audio,
        Document as Document,
        Image as Image,
        Message as Message,
        RedactedThinking as RedactedThinking,
        Text as Text,
        Thinking as Thinking,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
    )
    from corral.model_types import (
        Failed as Failed,
        Finish as Finish,
        FinishReason as FinishReason,
        ProviderEvent as ProviderEvent,
        RateLimit as RateLimit,
        Request as Request,
        Response as Response,
        ResponseFormat as ResponseFormat,
        Start as Start,
        StepFinish as StepFinish,
        StreamEvent as StreamEvent,
        TextDelta as TextDelta,
        TextEnd as TextEnd,
        TextStart as TextStart,
        ThinkingDelta as ThinkingDelta,
        ThinkingEnd as ThinkingEnd,
        ThinkingStart as ThinkingStart,
        ToolCallDelta as ToolCallDelta,
        ToolCallEnd as ToolCallEnd,
        ToolCallStart as ToolCallStart,
        ToolDone as ToolDone,
        ToolNamed as ToolNamed,
        ToolSpec as ToolSpec,
    )
    from corral._models import catalogue as catalogue
    from corral._models.spec import Provider as Provider, Traits as Traits, Wire as Wire
    from corral.values import Cost as Cost, Usage as Usage

_HOMES = {
    "corral._inference.api": "GenerationStream SyncGenerationStream generate generate_sync stream"
    " stream_sync",
    "corral._inference.client": "Client Middleware ResponseStream set_default_client",
    "corral._inference.results": "Fallback Generation Step",
    "corral._inference.structured": "NoObjectError ObjectStream generate_object"
    " generate_object_sync stream_object",
    "corral.messages": "Audio Document Image Message RedactedThinking Text Thinking ToolCall"
    " ToolResult",
    "corral.model_types": "Failed Finish FinishReason ProviderEvent RateLimit Request Response"
    " ResponseFormat Start StepFinish StreamEvent TextDelta TextEnd TextStart ThinkingDelta"
    " ThinkingEnd ThinkingStart ToolCallDelta ToolCallEnd ToolCallStart ToolDone ToolNamed"
    " ToolSpec",
    "corral._models.": "catalogue",
    "corral._models.spec": "Provider Traits Wire",
    "corral.values": "Cost Usage",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
