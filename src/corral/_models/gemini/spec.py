"""Gemini: ``generateContent`` of Google's Gemini API and of Vertex AI."""

from __future__ import annotations

from corral._models.gemini.request import encode
from corral._models.gemini.response import error_body, failure, read, translator
from corral._models.spec import BEARER, KeyPlace, Provider, Traits, Wire

WIRE = Wire(
    name="gemini",
    encode=encode,
    translator=translator,
    read=read,
    failure=failure,
    last_event_may_be_open=True,
    billed_paths=(
        "/models/{model}:generateContent",
        "/models/{model}:streamGenerateContent",
        "/tunedModels/{model}:generateContent",
        "/tunedModels/{model}:streamGenerateContent",
    ),
    free_paths=("/models/{model}:countTokens",),
    key_places=(BEARER, KeyPlace(parameter="key")),
    error_body=error_body,
)

PROVIDERS = (
    Provider(
        name="gemini",
        title="Gemini",
        otel_name="gcp.gemini",
        wire=WIRE,
        base_url="https://generativelanguage.googleapis.com",
        key_env=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_env=("GOOGLE_GEMINI_BASE_URL", "GEMINI_BASE_URL"),
        version="/v1beta",
        key_header="x-goog-api-key",
        key_prefix="",
        traits=Traits(model_path="/v1beta/"),
        aliases=("google",),
    ),
    Provider(
        name="vertex",
        title="Vertex AI",
        otel_name="gcp.vertex_ai",
        wire=WIRE,
        base_url="https://{host}",
        base_url_env=("GOOGLE_VERTEX_BASE_URL",),
        version="/v1",
        credentials="google",
        traits=Traits(model_path="/v1/projects/{project}/locations/{location}/publishers/google/"),
        extra_env={"project": "GOOGLE_CLOUD_PROJECT", "location": "GOOGLE_CLOUD_LOCATION"},
    ),
)
