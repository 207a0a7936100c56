"""Chat completions: of any server, by its base URL; of known vendors, and of local servers."""

from __future__ import annotations

from corral._models.chat.request import ask_for_usage, encode
from corral._models.chat.response import is_usage_event, read, translator
from corral._models.openai.response import LIMITS, RESETS, error_body, failure
from corral._models.spec import Provider, Traits, Wire

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
)

_USUAL = Traits()
_LONG_FIELD = Traits(max_tokens_field="max_completion_tokens")


def _vendor(
    name: str,
    title: str,
    base_url: str,
    traits: Traits = _USUAL,
    *,
    aliases: tuple[str, ...] = (),
    key_optional: bool = False,
) -> Provider:
    """A vendor whose variables have the prefix of its name."""
    return Provider(
        name=name,
        title=title,
        wire=WIRE,
        base_url=base_url,
        key_env=(f"{name.upper()}_API_KEY",),
        base_url_env=(f"{name.upper()}_BASE_URL",),
        traits=traits,
        aliases=aliases,
        key_optional=key_optional,
    )


def _local(name: str, title: str, port: int, traits: Traits = _USUAL) -> Provider:
    """A server on the user's machine, which needs a key only if it was started with one."""
    return _vendor(name, title, f"http://localhost:{port}/v1", traits, key_optional=True)


PROVIDERS = (
    _vendor("chat", "chat-completions server", "", key_optional=True),
    Provider(
        name="openai-chat",
        title="OpenAI",
        wire=WIRE,
        base_url="https://api.openai.com/v1",
        key_env=("OPENAI_API_KEY",),
        base_url_env=("OPENAI_BASE_URL",),
        traits=Traits(
            system_role="developer",
            max_tokens_field="max_completion_tokens",
            takes_metadata=True,
            openai_model_names=True,
        ),
    ),
    _vendor(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        Traits(reasoning_field="reasoning.effort"),
    ),
    _vendor("groq", "Groq", "https://api.groq.com/openai/v1", _LONG_FIELD),
    _vendor(
        "deepseek",
        "DeepSeek",
        "https://api.deepseek.com",
        Traits(
            json_schema=False,
            # It answers 400 if the history has a tool call without its reasoning.
            reasoning_content_field="reasoning_content",
            effort_overrides={"none": {"thinking": {"type": "disabled"}}},
        ),
    ),
    # It reports usage without being asked, and rejects unknown fields.
    _vendor(
        "mistral",
        "Mistral",
        "https://api.mistral.ai/v1",
        Traits(stream_usage=False, short_ids=True),
    ),
    _vendor("xai", "xAI", "https://api.x.ai/v1", _LONG_FIELD, aliases=("grok",)),
    _vendor("together", "Together", "https://api.together.xyz/v1"),
    _vendor("fireworks", "Fireworks", "https://api.fireworks.ai/inference/v1"),
    _vendor("cerebras", "Cerebras", "https://api.cerebras.ai/v1", _LONG_FIELD),
    _local("ollama", "Ollama", 11434),
    # It has no JSON mode without a schema.
    _local("lmstudio", "LM Studio", 1234, Traits(json_object=False)),
    _local("vllm", "vLLM", 8000),
)
