"""Routes that decode: the type of the body, what plans the answer, what tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.serving import anthropic, audio, fill, ollama, plan, protocol
from paceline.serving.embeddings import EmbeddingAnswer, EmbeddingsRequest, plan_states
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer, ChatAnswer, TextAnswer
from paceline.serving.responses import ResponseAnswer

Way = tuple[type[Any], Callable[[ServedModel, Any], plan.Plan], type[Answer]]
BATCHED: dict[str, Way] = {
    "/v1/chat/completions": (protocol.ChatRequest, plan.plan_chat, ChatAnswer),
    "/v1/completions": (protocol.CompletionRequest, fill.plan_filling, TextAnswer),
    "/v1/responses": (protocol.ResponsesRequest, plan.plan_response, ResponseAnswer),
}
"""Those that lines of a batch may name."""
ROUTES: dict[str, Way] = BATCHED | {
    "/infill": (fill.InfillRequest, fill.plan_infill, fill.InfillAnswer),
    "/v1/messages": (anthropic.MessagesRequest, anthropic.plan_messages, anthropic.MessageAnswer),
    "/v1/audio/transcriptions": (
        audio.TranscriptionRequest,
        audio.plan_transcript,
        audio.TranscriptAnswer,
    ),
    "/v1/audio/translations": (
        audio.TranslationRequest,
        audio.plan_transcript,
        audio.TranscriptAnswer,
    ),
    "/v1/embeddings": (EmbeddingsRequest, plan_states, EmbeddingAnswer),
    "/api/chat": (ollama.OllamaChat, ollama.plan_ollama_chat, ollama.OllamaAnswer),
    "/api/generate": (ollama.OllamaGenerate, ollama.plan_generate, ollama.GenerateAnswer),
    "/api/embed": (ollama.EmbedRequest, plan_states, ollama.EmbedAnswer),
}
# What SGLang's router asks a replica for, by its names of now and of before.
INFO = ("/model_info", "/get_model_info", "/server_info", "/get_server_info")
