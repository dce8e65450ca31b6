"""The OpenAPI document, made from the types that requests are checked with."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from paceline.serving.anthropic import CountRequest
from paceline.serving.files import BatchRequest
from paceline.serving.ollama import ShowRequest
from paceline.serving.pieces import LINES
from paceline.serving.protocol import DetokenizeRequest, TokenizeRequest
from paceline.serving.routes import BATCHED, INFO, ROUTES
from paceline.version import __version__

_BODIES = {
    "/v1/chat/completions": "Answer a conversation.",
    "/v1/completions": "Continue a text.",
    "/v1/responses": "Answer, or go on from an answer before.",
    "/v1/messages": "Answer a conversation, as Anthropic's API has it.",
    "/v1/messages/count_tokens": "Count the tokens of a conversation.",
    "/v1/audio/transcriptions": "Write down speech.",
    "/v1/audio/translations": "Write down speech, in English.",
    "/v1/embeddings": "Give the states of texts.",
    "/infill": "Fill in between two texts, as llama.cpp's server does.",
    "/v1/batches": "Answer the requests of a file.",
    "/api/chat": "Answer a conversation, as Ollama does.",
    "/api/generate": "Answer a prompt, as Ollama does.",
    "/api/embed": "Give the states of texts, as Ollama does.",
    "/api/show": "Show the model, as Ollama does.",
    "/tokenize": "Encode a text or a conversation.",
    "/detokenize": "Decode token ids.",
}
_KINDS: dict[str, type[Any]] = {path: way[0] for path, way in ROUTES.items()} | {
    "/v1/messages/count_tokens": CountRequest,
    "/v1/batches": BatchRequest,
    "/api/show": ShowRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_GETS = {
    "/v1/models": "List the model under its names.",
    "/v1/realtime": "Write down speech while it comes, by a WebSocket.",
    "/v1/files": "List the files that are kept.",
    "/v1/batches": "List the batches.",
    "/api/tags": "List the model, as Ollama does.",
    "/api/ps": "List the model as a running one, as Ollama does.",
    "/api/version": "Show the version.",
    "/tokenizer_info": "Show special tokens and the chat template.",
    **dict.fromkeys(INFO, "Show the model's path and names."),
    "/health": "Say whether requests are taken.",
    "/metrics": "Show metrics for Prometheus.",
    "/openapi.json": "Show this document.",
}
_NAMED = {
    "/v1/models/{name}": {"get": "Show the model under one of its names."},
    "/v1/files/{id}": {"get": "Show a file's record.", "delete": "Delete a file."},
    "/v1/files/{id}/content": {"get": "Show what is in a file."},
    "/v1/batches/{id}": {"get": "Show a batch."},
    "/v1/batches/{id}/cancel": {"post": "End a batch with what is answered."},
    "/v1/responses/{id}": {"get": "Show a kept response.", "delete": "Forget a response."},
    "/v1/responses/{id}/input_items": {"get": "List what a kept response answered."},
}
_QUERIES = {
    "/v1/responses/{id}/input_items": ("order", "after", "limit"),
    "/v1/files": ("order", "after", "limit", "purpose"),
    "/v1/batches": ("after", "limit"),
}
_ERRORS = {
    "400": "The request is wrong: the error names the field and the fix.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model, or nothing of that id.",
    "405": "The method is not served here.",
    "408": "The body arrived too slowly, or the answer was read too slowly.",
    "413": "The body is too large.",
    "415": "The body is of a kind that is not read.",
    "426": "The route is a WebSocket.",
    "429": "The server has accepted as much as it may: see Retry-After.",
    "409": "It has ended.",
    "500": "The server failed.",
    "501": "The server was started without a folder for files.",
    "503": "The server is loading, draining, or out of memory.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": ["object", "string"],  # text alone in Ollama's API
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    schemas, components = msgspec.json.schema_components(
        _KINDS.values(), ref_template="#/components/schemas/{name}"
    )
    bodies = dict(zip(_KINDS, schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, summary in _BODIES.items():
        media = "application/x-ndjson" if path[:5] == "/api/" else "text/event-stream"
        streams = {media: {"schema": {"type": "string"}}} if path.startswith(_STREAMS) else {}
        sent = "multipart/form-data" if path.startswith("/v1/audio/") else "application/json"
        content = {sent: {"schema": bodies[path]}}
        if path in BATCHED:
            content[LINES] = {"schema": {"type": "string"}}
        body = {"required": True, "content": content}
        paths[path] = {"post": _operation(summary, streams, _ERRORS) | {"requestBody": body}}
    for path, summary in _GETS.items():
        kept = {status: text for status, text in _ERRORS.items() if status in _QUIET}
        if path == "/v1/realtime":
            kept["426"] = _ERRORS["426"]
        if path in _QUERIES:
            kept |= {"400": _ERRORS["400"], "501": _ERRORS["501"]}
        shown = _operation(summary, {}, kept, plain=path == "/metrics")
        paths.setdefault(path, {})["get"] = shown | {"parameters": _queries(path)}
    form: dict[str, Any] = {"type": "object", "required": ["file", "purpose"]}
    form["properties"] = {"purpose": {"const": "batch"}, "file": {"type": "string"}}
    upload = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    paths["/v1/files"]["post"] = _operation("Keep a file.", {}, _ERRORS) | {"requestBody": upload}
    for path, methods in _NAMED.items():
        [name] = re.findall(r"{(\w+)}", path)
        given = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[path] = {
            method: _operation(summary, {}, _ERRORS, plain=path.endswith("/content"))
            | {"parameters": given + _queries(path)}
            for method, summary in methods.items()
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "paceline", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


_STREAMS = (
    "/v1/chat",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio",
    "/infill",
    "/api/",
)
_QUIET = ("401", "405", "503")


def _queries(path: str) -> list[Any]:
    names = _QUERIES.get(path, ())
    return [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]


def _operation(
    summary: str, streams: dict[str, Any], errors: dict[str, str], plain: bool = False
) -> dict[str, Any]:
    media = "text/plain" if plain else "application/json"
    shape = {"type": "string"} if plain else {"type": "object"}
    good = {"description": "Done.", "content": {media: {"schema": shape}, **streams}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    bad = {status: {"description": text, "content": error} for status, text in errors.items()}
    return {"summary": summary, "responses": {"200": good, **bad}}
