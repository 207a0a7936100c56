"""Anthropic: the Messages API."""

from __future__ import annotations

from corral._models.anthropic.request import encode
from corral._models.anthropic.response import error_body, failure, read, translator
from corral._models.spec import BEARER, Provider, Wire

LIMITS = {
    f"{kind}_{fact}": f"anthropic-ratelimit-{kind}-{fact}"
    for kind in ("requests", "tokens")
    for fact in ("limit", "remaining", "reset")
}
RESETS = tuple(
    f"anthropic-ratelimit-{kind}-reset" for kind in ("unified", "input-tokens", "output-tokens")
)

WIRE = Wire(
    name="anthropic",
    encode=encode,
    translator=translator,
    read=read,
    failure=failure,
    rate_limit_headers=LIMITS,
    reset_headers=RESETS,
    billed_paths=("/messages",),
    free_paths=("/messages/count_tokens",),
    key_places=(BEARER,),
    error_body=error_body,
)

PROVIDERS = (
    Provider(
        name="anthropic",
        title="Anthropic",
        wire=WIRE,
        base_url="https://api.anthropic.com",
        key_env=("ANTHROPIC_API_KEY",),
        base_url_env=("ANTHROPIC_BASE_URL",),
        version="/v1",
        key_header="x-api-key",
        key_prefix="",
        # The version that every server of this API supports.
        headers={"anthropic-version": "2023-06-01"},
        aliases=("claude",),
    ),
)
