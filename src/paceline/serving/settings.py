"""Settings of the server: flags of `paceline serve`, and keys of its configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from paceline.core.options import require


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server is reached, and what it takes on."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8000
    served_name: Annotated[
        list[str] | None,
        typer.Option(help="Name of the model for clients; repeatable. Default: that of --model."),
    ] = None
    api_key_file: Annotated[
        str | None, typer.Option(help="File of API keys, one per line. Or set PACELINE_API_KEY.")
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of web pages that may call the server; repeatable."),
    ] = None
    max_batch: Annotated[int, typer.Option(help="Most sequences decoded together.")] = 8
    max_waiting: Annotated[
        int, typer.Option(help="Most sequences that wait; beyond it the answer is 429.")
    ] = 1024
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Most prompt tokens of all accepted requests together.")
    ] = None
    max_body: Annotated[int, typer.Option(help="Most bytes of a request's body.")] = 8 * 1024 * 1024
    body_timeout: Annotated[
        float, typer.Option(help="Seconds in which headers, and then a body, must arrive.")
    ] = 30.0
    read_timeout: Annotated[
        float, typer.Option(help="Seconds in which a client must read on in a stream.")
    ] = 60.0
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that accepted requests have to end after SIGTERM.")
    ] = 30.0
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse requests with unknown fields.")
    ] = False
    compact_json: Annotated[
        bool, typer.Option("--compact-json", help="Held JSON has no white space.")
    ] = False
    allow_chat_template: Annotated[
        bool,
        typer.Option(
            "--allow-chat-template",
            help="Chats may bring a chat_template: for clients that are trusted with the server's "
            "time and memory.",
        ),
    ] = False
    files: Annotated[
        str | None,
        typer.Option(help="Folder for /v1/files and /v1/batches; without it there are none."),
    ] = None
    keep_responses: Annotated[
        int,
        typer.Option(
            help="Answers of /v1/responses kept for requests that go on from them; 0 keeps none."
        ),
    ] = 256
    vllm_metrics: Annotated[
        bool, typer.Option("--vllm-metrics", help="Name metrics as vLLM does, too.")
    ] = False
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Log lines of text instead of JSON.")
    ] = False

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, "port", self.port, "0 to 65535")
        require(self.max_batch >= 1, "max_batch", self.max_batch, "1 or more")
        require(self.max_waiting >= 0, "max_waiting", self.max_waiting, "0 or more")
        require(self.keep_responses >= 0, "keep_responses", self.keep_responses, "0 or more")
        require(self.max_body >= 1, "max_body", self.max_body, "1 or more")
        require(self.body_timeout > 0, "body_timeout", self.body_timeout, "more than 0")
        require(self.read_timeout > 0, "read_timeout", self.read_timeout, "more than 0")
        require(self.shutdown_timeout >= 0, "shutdown_timeout", self.shutdown_timeout, "0 or more")
