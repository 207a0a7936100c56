"""Chat completions of any server, by its base URL. Known vendors are in ``vendors``."""

from __future__ import annotations

from corral.models.chat.request import ask_for_usage, encode
from corral.models.chat.response import is_usage_event, read, translator
from corral.models.openai.errors import LIMITS, RESETS, error_body, failure
from corral.models.spec import Provider, Wire

WIRE = Wire(
    name="chat",
    encode=encode,
    translator=translator,
    read=read,
    failure=failure,
    rate_limit_headers=LIMITS,
    reset_headers=RESETS,
    billed_paths=("/chat/completions",),
    error_body=error_body,
    ask_for_usage=ask_for_usage,
    is_usage_event=is_usage_event,
    call_format="corral.models.chat.tool_calls:ChatCalls",
)

PROVIDERS = (
    Provider(
        name="chat",
        title="chat-completions server",
        wire=WIRE,
        base_url="",
        key_env=("CHAT_API_KEY",),
        base_url_env=("CHAT_BASE_URL",),
        key_optional=True,
    ),
)
