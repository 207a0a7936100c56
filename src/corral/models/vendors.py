"""Vendors and local servers with a chat-completions API."""

from __future__ import annotations

from corral.models.chat.spec import WIRE
from corral.models.spec import Provider, Traits


def _local(name: str, title: str, port: int, traits: Traits) -> Provider:
    """A server on the user's machine, which needs a key only if it was started with one."""
    return Provider(
        name=name,
        title=title,
        wire=WIRE,
        base_url=f"http://localhost:{port}/v1",
        key_env=(f"{name.upper()}_API_KEY",),
        base_url_env=(f"{name.upper()}_BASE_URL",),
        key_optional=True,
        traits=traits,
    )


PROVIDERS = (
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
    Provider(
        name="openrouter",
        title="OpenRouter",
        wire=WIRE,
        base_url="https://openrouter.ai/api/v1",
        key_env=("OPENROUTER_API_KEY",),
        base_url_env=("OPENROUTER_BASE_URL",),
        traits=Traits(reasoning_field="reasoning.effort"),
    ),
    Provider(
        name="groq",
        title="Groq",
        wire=WIRE,
        base_url="https://api.groq.com/openai/v1",
        key_env=("GROQ_API_KEY",),
        base_url_env=("GROQ_BASE_URL",),
        traits=Traits(max_tokens_field="max_completion_tokens"),
    ),
    Provider(
        name="deepseek",
        title="DeepSeek",
        wire=WIRE,
        base_url="https://api.deepseek.com",
        key_env=("DEEPSEEK_API_KEY",),
        base_url_env=("DEEPSEEK_BASE_URL",),
        traits=Traits(
            json_schema=False,
            # It answers 400 if the history has a tool call without its reasoning.
            reasoning_content_field="reasoning_content",
            effort_overrides={"none": {"thinking": {"type": "disabled"}}},
        ),
    ),
    Provider(
        name="mistral",
        title="Mistral",
        wire=WIRE,
        base_url="https://api.mistral.ai/v1",
        key_env=("MISTRAL_API_KEY",),
        base_url_env=("MISTRAL_BASE_URL",),
        # It reports usage without being asked, and rejects unknown fields.
        traits=Traits(stream_usage=False, short_ids=True),
    ),
    Provider(
        name="xai",
        title="xAI",
        wire=WIRE,
        base_url="https://api.x.ai/v1",
        key_env=("XAI_API_KEY",),
        base_url_env=("XAI_BASE_URL",),
        traits=Traits(max_tokens_field="max_completion_tokens"),
        aliases=("grok",),
    ),
    Provider(
        name="together",
        title="Together",
        wire=WIRE,
        base_url="https://api.together.xyz/v1",
        key_env=("TOGETHER_API_KEY",),
        base_url_env=("TOGETHER_BASE_URL",),
    ),
    Provider(
        name="fireworks",
        title="Fireworks",
        wire=WIRE,
        base_url="https://api.fireworks.ai/inference/v1",
        key_env=("FIREWORKS_API_KEY",),
        base_url_env=("FIREWORKS_BASE_URL",),
    ),
    Provider(
        name="cerebras",
        title="Cerebras",
        wire=WIRE,
        base_url="https://api.cerebras.ai/v1",
        key_env=("CEREBRAS_API_KEY",),
        base_url_env=("CEREBRAS_BASE_URL",),
        traits=Traits(max_tokens_field="max_completion_tokens"),
    ),
    _local("ollama", "Ollama", 11434, Traits()),
    # It has no JSON mode without a schema.
    _local("lmstudio", "LM Studio", 1234, Traits(json_object=False)),
    _local("vllm", "vLLM", 8000, Traits()),
)
