"""OpenAI: the Responses API. Chat completions are in ``chat`` and ``vendors``."""

from __future__ import annotations

from corral._models.openai.request import encode
from corral._models.openai.response import LIMITS, RESETS, error_body, failure, read, translator
from corral._models.spec import Provider, Wire

WIRE = Wire(
    name="openai",
    encode=encode,
    translator=translator,
    read=read,
    failure=failure,
    rate_limit_headers=LIMITS,
    reset_headers=RESETS,
    billed_paths=("/responses", "/responses/compact"),
    error_body=error_body,
)

PROVIDERS = (
    Provider(
        name="openai",
        title="OpenAI",
        wire=WIRE,
        base_url="https://api.openai.com/v1",
        key_env=("OPENAI_API_KEY",),
        base_url_env=("OPENAI_BASE_URL",),
    ),
)
