"""The engine: requests in, text out. Admission, batching, streaming, cancelling."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, overload

from paceline.decode.autoregressive import AutoregressiveDecoder, Commit
from paceline.errors import InvalidOption, OutOfMemory, PromptError
from paceline.metrics import GenerationStats
from paceline.sequence import Sequence
from paceline.text import Tokenizer
from paceline.transcript import Transcript
from paceline.types import UNLIMITED, FinishReason, SamplingParams, Speculation, TokenLogprob

Message = Mapping[str, str]
Prompt = str | List[Message] | List[int]
"""Text (a user turn, or raw text), chat messages, or token ids."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation.

    Attributes:
        text: generated text, without end tokens and cut before a stop string.
        token_ids: generated tokens; the end token, if one came, is the last.
        logprobs: per token, if asked for.
        sources: per token, the drafter that proposed it, or None if the target chose it.
        prompt_tokens: length of the prompt in tokens.
        finish_reason: "stop", "length" or "cancelled".
        stats: counters and times.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    sources: tuple[str | None, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class Event:
    """What one step did to one request.

    Attributes:
        request: the request's id.
        text: text that became final; may be empty while a character or stop string is open.
        token_ids: tokens committed in this step.
        sources: per token, the drafter that proposed it, or None.
        completion: set once the request has ended.
    """

    request: int
    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str | None, ...]
    completion: Completion | None = None


@dataclass(slots=True)
class _Request:
    sequence: Sequence
    transcript: Transcript
    added: float = field(default_factory=perf_counter)


class Engine:
    """Generates text for any number of requests, `max_batch` of them at a time.

    `generate` and `stream` are all that most callers need. Servers drive `add`, `step` and
    `cancel` themselves. An engine is not thread-safe.
    """

    def __init__(
        self,
        decoder: AutoregressiveDecoder,
        tokenizer: Tokenizer,
        *,
        max_batch: int = 8,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Use `paceline.load` unless you bring your own parts.

        Args:
            decoder: the loop with its target, drafter, verifier and controller.
            tokenizer: the target's tokenizer.
            max_batch: most sequences decoded together.
            config: what the engine was loaded with, for reports.
        """
        if max_batch < 1:
            raise InvalidOption(f"max_batch must be 1 or more, not {max_batch}")
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.config = dict(config or {})
        self._max_batch = max_batch
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._mail: dict[int, deque[Event]] = {}
        self._next_id = 0

    @overload
    def generate(
        self, prompt: str | List[Message] | List[int], params: SamplingParams | None = ..., **o: Any
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: List[str] | List[List[Message]], params: SamplingParams | None = ..., **o: Any
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Any, params: SamplingParams | None = None, **options: Any
    ) -> Completion | list[Completion]:
        """Generate to the end.

        Args:
            prompt: text or chat messages; or a list of texts or of message lists, which are
                decoded as a ragged batch and answered by a list.
            params: sampling parameters; single ones may be given as keywords instead.
            **options: fields of `SamplingParams`, and `raw`, `system` and `speculation` as
                for `add`.

        Raises:
            PromptError: the prompt is empty or longer than the context.
            InvalidOption: an option is unknown or out of range.
        """
        many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
        requests: list[int] = []
        try:
            for each in prompt if many else [prompt]:
                requests.append(self._post(each, params, options))
            done = [self._last_event(request) for request in requests]
        finally:
            for request in requests:
                self._drop(request)
        return done if many else done[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Iterator[str]:
        """Yield text as it becomes final. Closing the iterator cancels the request."""
        for event in self.events(prompt, params, **options):
            if event.text:
                yield event.text

    def events(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Iterator[Event]:
        """Like `stream`, with tokens, their sources and the completion."""
        request = self._post(prompt, params, options)
        try:
            while True:
                event = self._read(request)
                yield event
                if event.completion is not None:
                    return
        finally:
            self._drop(request)

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        system: str | None = None,
        speculation: Speculation = UNLIMITED,
        **options: Any,
    ) -> int:
        """Queue a request and return its id.

        Args:
            prompt: text (a user turn under the model's chat template), messages, or token ids.
            params: sampling parameters.
            raw: take text as it is, without the chat template.
            system: system message to put before a text prompt.
            speculation: limits of the drafts for this request; the output is the same.
            **options: single fields of `SamplingParams`.

        Raises:
            PromptError: the prompt is empty or longer than the context.
            InvalidOption: an option is unknown or out of range.
        """
        if not isinstance(speculation, Speculation):
            raise InvalidOption(
                f"speculation must be a Speculation, such as Speculation(enabled=False), not "
                f"{speculation!r}"
            )
        params = self._params(params or SamplingParams(), options)
        ids = self._encode(prompt, raw, system)
        context = self.decoder.target.capabilities.max_context
        if not ids:
            raise PromptError("the prompt is empty: give some text")
        if len(ids) >= context:
            raise PromptError(
                f"the prompt has {len(ids)} tokens and the context holds {context}, of which one "
                "must stay free: shorten the prompt"
            )
        sequence = Sequence.start(self._next_id, ids, params, speculation=speculation)
        self._next_id += 1
        self._waiting.append(_Request(sequence, Transcript(self.tokenizer, params.stop)))
        return sequence.id

    def step(self) -> list[Event]:
        """Admit what fits, then decode one round for all running requests.

        Returns an empty list when nothing is left to do.
        """
        self._admit()
        if not self._running:
            return []
        commits = self.decoder.step([request.sequence for request in self._running])
        events = list(map(self._event, tuple(self._running), commits))
        self._running = [r for r in self._running if r.sequence.finish_reason is None]
        for event in events:
            if event.request in self._mail:
                self._mail[event.request].append(event)
        return events

    def cancel(self, request: int) -> Completion | None:
        """End a request now; what was generated so far, or None if it is not in flight.

        Whoever reads the request's stream gets the completion as its last event.
        """
        for queue in (self._waiting, self._running):
            for each in queue:
                if each.sequence.id == request:
                    queue.remove(each)
                    each.sequence.finish_reason = "cancelled"
                    if queue is self._running:
                        self.decoder.close(each.sequence)
                    completion = self._complete(each)
                    if request in self._mail:
                        text = each.transcript.take()
                        self._mail[request].append(Event(request, text, (), (), completion))
                    return completion
        return None

    @property
    def pending(self) -> int:
        """Requests waiting or running."""
        return len(self._waiting) + len(self._running)

    def _post(self, prompt: Any, params: SamplingParams | None, options: Mapping[str, Any]) -> int:
        """Queue a request whose events are kept until `_read`, whoever drives `step`."""
        request = self.add(prompt, params, **options)
        self._mail[request] = deque()
        return request

    def _read(self, request: int) -> Event:
        """The request's next event, stepping until there is one."""
        mail = self._mail[request]
        while not mail:
            self.step()
        return mail.popleft()

    def _last_event(self, request: int) -> Completion:
        while (completion := self._read(request).completion) is None:
            pass
        return completion

    def _drop(self, request: int) -> None:
        """The request's events are no longer wanted."""
        self._mail.pop(request, None)
        self.cancel(request)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            request = self._waiting[0]
            try:
                self.decoder.open(request.sequence, request.transcript)
            except OutOfMemory:
                if not self._running:
                    self._waiting.popleft()
                    raise
                return  # wait until a running request gives memory back
            self._waiting.popleft()
            self._running.append(request)

    def _event(self, request: _Request, commit: Commit) -> Event:
        stats = request.sequence.stats
        if stats.first_token_seconds is None:
            stats.first_token_seconds = perf_counter() - request.added
        completion = None
        if commit.finish_reason is not None:
            self.decoder.close(request.sequence)
            completion = self._complete(request)
        text = request.transcript.take()
        return Event(request.sequence.id, text, commit.tokens, commit.sources, completion)

    def _complete(self, request: _Request) -> Completion:
        sequence = request.sequence
        assert sequence.finish_reason is not None
        request.transcript.finish()
        return Completion(
            request.transcript.text,
            tuple(sequence.generated),
            tuple(sequence.logprobs),
            tuple(sequence.sources),
            sequence.prompt_length,
            sequence.finish_reason,
            sequence.stats,
        )

    def _params(self, params: SamplingParams, options: Mapping[str, Any]) -> SamplingParams:
        unknown = set(options) - set(SamplingParams.__slots__)
        if unknown:
            raise InvalidOption(
                f"option {sorted(unknown)[0]!r} is unknown: use raw, system, speculation, "
                f"{', '.join(SamplingParams.__slots__)}"
            )
        if isinstance(options.get("stop"), str):
            options = {**options, "stop": (options["stop"],)}
        params = replace(params, **options)
        vocabulary = self.decoder.target.capabilities.vocab_size
        for name in ("logit_bias", "banned_tokens", "forced_tokens", "stop_token_ids"):
            given = getattr(params, name)
            for token in given.values() if name == "forced_tokens" else given:
                if not 0 <= token < vocabulary:
                    raise InvalidOption(
                        f"{name} holds token {token}, but the vocabulary has ids 0 to "
                        f"{vocabulary - 1}"
                    )
        if len(set(params.banned_tokens)) >= vocabulary:
            raise InvalidOption("banned_tokens holds the whole vocabulary: leave some token")
        if not params.greedy and self.decoder.verifier.name == "greedy":
            raise InvalidOption(
                f"verifier 'greedy' cannot sample at temperature {params.temperature}: "
                "use verifier 'coupled' or temperature 0"
            )
        return params

    def _encode(self, prompt: Prompt, raw: bool, system: str | None) -> list[int]:
        if isinstance(prompt, str):
            if not prompt.strip() and not raw:
                return []
            if raw or self.tokenizer.chat_template is None:
                return self.tokenizer.encode(prompt)
            before = [{"role": "system", "content": system}] if system else []
            return self.tokenizer.chat([*before, {"role": "user", "content": prompt}])
        ids = [token for token in prompt if isinstance(token, int)]
        messages = [dict(message) for message in prompt if isinstance(message, Mapping)]
        if (ids and messages) or len(ids) + len(messages) != len(prompt):
            raise PromptError("a prompt is text, a list of messages, or a list of token ids")
        if messages:
            return self.tokenizer.chat(messages)
        vocabulary = self.decoder.target.capabilities.vocab_size
        for token in ids:
            if not 0 <= token < vocabulary:
                raise PromptError(
                    f"the prompt holds token {token}, but the vocabulary has ids 0 to "
                    f"{vocabulary - 1}"
                )
        return ids
