"""Chat completions of any server, by its base URL. Known vendors are in ``vendors``."""

from __future__ import annotations

from corral.models.chat.request import encode
from corral.models.chat.response import read, translator
from corral.models.openai.errors import LIMITS, failure
from corral.models.spec import Provider, Wire

WIRE = Wire(
    name="chat",
    encode=encode,
    translator=translator,
    read=read,
    failure=failure,
    rate_limit_headers=LIMITS,
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
