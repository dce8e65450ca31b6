"""A prompt that is written while the model reads it (Stream2LLM, arXiv:2604.16395)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from paceline.core.types import SamplingParams
from paceline.engine.requests import Completion, Event, Prepared, Prompt
from paceline.errors import PromptError


class Answers(Protocol):
    """What answers prompts: the `Engine`."""

    def prepare(
        self, prompt: Prompt, params: SamplingParams | None, **options: Any
    ) -> Prepared: ...

    def enter(self, prompt: Prepared) -> int: ...

    def replace(self, request: int, prompt: Prepared) -> None: ...

    def read(self, request: int) -> bool: ...

    def follow(self, request: int) -> Iterator[Event]: ...

    def leave(self, request: int) -> None: ...


class Writing:
    """A prompt that comes in pieces; the answer is that to the whole of it, sent at once.

        with engine.writing(max_new_tokens=64) as prompt:
            for page in pages:
                prompt.append(page)
            prompt.finish()
            answer = prompt.completion()

    Nothing is answered before `finish`. The prompt is read by steps of the engine, which other
    callers drive, or `read`. Leaving the block ends the request, whatever its state.
    """

    def __init__(
        self, engine: Answers, params: SamplingParams | None, options: Mapping[str, Any]
    ) -> None:
        """See `Engine.writing`."""
        self._engine, self._params, self._options = engine, params, dict(options)
        self._prompt: Prompt = ""
        self._request: int | None = None
        self._finished = False
        engine.prepare("a", params, **{**options, "open": True})  # what is wrong is told at once

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, piece: Prompt) -> None:
        """Let the prompt go on: text in its last message, messages and tokens behind the others.

        Raises:
            PromptError: the prompt is finished, or the piece is of another form.
            ContextExceeded: the prompt becomes too long. It stays as it was.
            PacelineError: the request has failed.
        """
        self.replace(joined(self._prompt, piece))

    def replace(self, prompt: Prompt) -> None:
        """Begin again with another prompt; what both begin with stays read. Errors as `append`."""
        if self._finished:
            raise PromptError("the prompt is finished: write another one")
        if not isinstance(prompt, str) or prompt.strip():  # else there is nothing to read so far
            self._hand(prompt, open=True)
        self._prompt = prompt

    def read(self) -> bool:
        """Take a step of the engine; return whether more of what is written can be read now."""
        return self._request is not None and self._engine.read(self._request)

    def finish(self) -> None:
        """Say that the prompt is whole: now it is answered. Errors as `append`."""
        if not self._finished:
            self._hand(self._prompt, open=False)
            self._finished = True

    def events(self) -> Iterator[Event]:
        """Yield events of the answer, as `Engine.events`.

        PromptError: the prompt is not finished, or the request is closed.
        """
        if not self._finished or self._request is None:
            raise PromptError("the prompt is still written, or closed: finish it, then ask")
        return self._engine.follow(self._request)

    def stream(self) -> Iterator[str]:
        """Yield text as it becomes final. Errors as `events`."""
        return (event.text for event in self.events() if event.text)

    def completion(self) -> Completion:
        """Wait for the end of the answer. Errors as `events`."""
        *_, last = self.events()
        assert last.completion is not None
        return last.completion

    def close(self) -> None:
        """End the request, if it has not ended. Nothing can be written or asked then."""
        self._finished = True
        if self._request is not None:
            self._engine.leave(self._request)
            self._request = None

    def _hand(self, prompt: Prompt, *, open: bool) -> None:
        prepared = self._engine.prepare(prompt, self._params, **{**self._options, "open": open})
        if self._request is None:
            self._request = self._engine.enter(prepared)
        else:
            self._engine.replace(self._request, prepared)


def joined(prompt: Prompt, piece: Prompt) -> Prompt:
    """Return a prompt that goes on by a piece; PromptError if they are of different forms."""
    if isinstance(piece, str | list | tuple) and not (prompt and piece):
        return piece or prompt
    if isinstance(prompt, str):
        if isinstance(piece, str):
            return prompt + piece
    elif isinstance(piece, str):
        last: Any = prompt[-1]
        if isinstance(last, Mapping) and isinstance(last.get("content"), str):
            message = {**last, "content": last["content"] + piece}
            return [*cast(Sequence[Mapping[str, Any]], prompt[:-1]), message]
    elif isinstance(piece, list | tuple) and (
        isinstance(prompt[0], Mapping) == isinstance(piece[0], Mapping)
    ):
        return cast(Prompt, [*prompt, *piece])
    raise PromptError(
        "a piece goes on in the form of the prompt: text behind text or in a message of text, "
        "messages behind messages, token ids behind token ids"
    )
