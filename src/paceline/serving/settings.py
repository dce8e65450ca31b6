"""Settings of the server: flags of `paceline serve`, and keys of its configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.core.options import Allowed, at_least, check_fields

GIB = 1024**3
_SOME = Allowed(lambda value: value > 0, "more than 0")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server is reached, and what it takes on."""

    host: Annotated[str, "Address to listen on."] = "127.0.0.1"
    port: Annotated[
        int,
        "Port to listen on; 0 takes any free one.",
        Allowed(range(65536).__contains__, "0 to 65535"),
    ] = 8000
    served_name: Annotated[
        list[str] | None,
        "Name of the model for clients; repeatable. Default: that of --model.",
    ] = None
    api_key_file: Annotated[
        str | None, "File of API keys, one per line. Or set PACELINE_API_KEY."
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        "Origin of web pages that may call the server; repeatable.",
    ] = None
    memory: Annotated[
        float | None,
        "Most GiB of loaded models, files and full caches; what was used longest ago makes room.",
        _SOME,
    ] = None
    max_batch: Annotated[int, "Most sequences decoded together.", at_least(1)] = 8
    max_waiting: Annotated[
        int, "Most sequences that wait; beyond it the answer is 429.", at_least(0)
    ] = 1024
    max_prompt_tokens: Annotated[
        int | None, "Most prompt tokens of all accepted requests together."
    ] = None
    max_sound: Annotated[
        float | None, "Most seconds of sound of all accepted requests together, and of each.", _SOME
    ] = 7200.0
    silence: Annotated[
        str | None,
        "Weights of Silero VAD, which tell where speech is, or none to hear silence, too. Default: "
        "those of the package silero-vad, if it is installed.",
    ] = None
    max_body: Annotated[
        int, "Most bytes of a request's body, or of an event of a WebSocket.", at_least(1)
    ] = 8 * 1024 * 1024
    body_timeout: Annotated[
        float, "Seconds in which headers, then a body or the next line of it, must arrive.", _SOME
    ] = 30.0
    read_timeout: Annotated[
        float,
        "Seconds in which a client must read on in a stream, or send on in a WebSocket.",
        _SOME,
    ] = 60.0
    shutdown_timeout: Annotated[
        float, "Seconds that accepted requests have to end after SIGTERM.", at_least(0, int | float)
    ] = 30.0
    strict: Annotated[bool, "Refuse requests with unknown fields."] = False
    compact_json: Annotated[bool, "Held JSON has no white space."] = False
    allow_chat_template: Annotated[
        bool,
        "Chats may bring a chat_template: for clients that are trusted with the server's "
        "time and memory.",
    ] = False
    files: Annotated[
        str | None,
        "Folder for /v1/files and /v1/batches; without it there are none.",
    ] = None
    keep_responses: Annotated[
        int,
        "Answers of /v1/responses kept for requests that go on from them; 0 keeps none.",
        at_least(0),
    ] = 256
    vllm_metrics: Annotated[bool, "Name metrics as vLLM does, too."] = False
    log_text: Annotated[bool, "Log lines of text instead of JSON."] = False

    def __post_init__(self) -> None:
        check_fields(self)
