"""The engine: requests in, text out. Admission, batching, streaming, cancelling."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, overload

from paceline.decode.autoregressive import AutoregressiveDecoder
from paceline.decode.commit import Commit
from paceline.errors import InvalidOption, OutOfMemory, PromptError
from paceline.intake import Message as Message
from paceline.intake import Prompt as Prompt
from paceline.intake import parameters, token_ids
from paceline.metrics import GenerationStats
from paceline.scheduling.limits import Limits
from paceline.scheduling.scheduler import Request, Scheduler
from paceline.sequence import Sequence
from paceline.text import Tokenizer
from paceline.transcript import Transcript
from paceline.types import UNLIMITED, FinishReason, SamplingParams, Speculation, TokenLogprob


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation.

    Attributes:
        text: generated text, without end tokens and cut before a stop string.
        token_ids: generated tokens; the end token, if one came, is the last.
        logprobs: per token, if asked for.
        sources: per token, the drafter that proposed it, or None if the target chose it.
        prompt_tokens: length of the prompt in tokens.
        finish_reason: "stop", "loop", "length" or "cancelled".
        stats: counters and times.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    sources: tuple[str | None, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    stats: GenerationStats


class Event(NamedTuple):
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


class Engine:
    """Generates text for any number of requests, `max_batch` of them at a time.

    `generate` and `stream` are all that most callers need. Servers drive `add`, `step` and
    `cancel` themselves. An engine is not thread-safe. Who runs and who waits is decided by the
    `Scheduler`; what a request gets does not depend on it.
    """

    def __init__(
        self,
        decoder: AutoregressiveDecoder,
        tokenizer: Tokenizer,
        *,
        max_batch: int = 8,
        max_waiting: int | None = None,
        step_tokens: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Use `paceline.load` unless you bring your own parts.

        Args:
            decoder: the loop with its target, drafter, verifier and controller.
            tokenizer: the target's tokenizer.
            max_batch: most sequences decoded together.
            max_waiting: most requests beyond those; None sets no limit.
            step_tokens: most rows of a forward that reads prompts beside running requests; None
                chooses by what forwards cost.
            config: what the engine was loaded with, for reports.

        Raises:
            InvalidOption: a limit is out of range.
        """
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.config = dict(config or {})
        self.scheduler = Scheduler(Limits(max_batch, max_waiting, step_tokens), decoder.memory)
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
            OutOfMemory: the prompt does not fit into the key-value cache, even alone.
            QueueFull: more requests are waiting than may wait.
            InvalidOption: an option is unknown or out of range.
        """
        if not isinstance(speculation, Speculation):
            raise InvalidOption(
                f"speculation must be a Speculation, such as Speculation(enabled=False), not "
                f"{speculation!r}"
            )
        target = self.decoder.target.capabilities
        params = parameters(params or SamplingParams(), options, target.vocab_size)
        if not params.greedy and self.decoder.verifier.name == "greedy":
            raise InvalidOption(
                f"verifier 'greedy' cannot sample at temperature {params.temperature}: "
                "use verifier 'coupled' or temperature 0"
            )
        ids = token_ids(prompt, self.tokenizer, target.vocab_size, raw, system)
        self.scheduler.check(len(ids))
        if len(ids) >= target.max_context:
            raise PromptError(
                f"the prompt has {len(ids)} tokens and the context holds {target.max_context}, of "
                "which one must stay free: shorten the prompt"
            )
        sequence = Sequence.start(self._next_id, ids, params, speculation=speculation)
        self._next_id += 1
        self.scheduler.add(Request(sequence, Transcript(self.tokenizer, params.stop)))
        return sequence.id

    def step(self) -> list[Event]:
        """Admit what fits, read prompts, and decode one round for all running requests.

        Returns an empty list when nothing is left to do (`pending` is 0 then), or when long
        prompts were read and nobody was running.

        Raises:
            OutOfMemory: a request found no room though it ran alone; it has ended.
        """
        while True:
            try:
                decoding, commits = self._round()
                break
            except OutOfMemory:
                if not self._preempt():
                    raise
        events = list(map(self._event, decoding, commits))
        for event in events:
            if event.request in self._mail:
                self._mail[event.request].append(event)
        return events

    def cancel(self, request: int) -> Completion | None:
        """End a request now; what was generated so far, or None if it is not in flight.

        Whoever reads the request's stream gets the completion as its last event.
        """
        for each in self.scheduler:
            if each.sequence.id == request:
                each.sequence.finish_reason = "cancelled"
                self._leave(each)
                completion = self._complete(each)
                if request in self._mail:
                    text = each.transcript.take()
                    self._mail[request].append(Event(request, text, (), (), completion))
                return completion
        return None

    @property
    def pending(self) -> int:
        """Requests waiting or running."""
        return len(self.scheduler)

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

    def _round(self) -> tuple[tuple[Request, ...], list[Commit]]:
        """One forward for all that run, with chunks of what is to be read; who ran, and commits."""
        scheduler, costs = self.scheduler, self.decoder.controller.costs
        self._admit()
        self._begin()
        running = scheduler.running
        if not running and (chunks := scheduler.chunks(costs)):
            self.decoder.read(chunks)  # nobody waits for a token
            self._begin()
            running = scheduler.running
        sequences = [request.sequence for request in running]
        while scheduler.short(sequences) and self._preempt():
            running = scheduler.running
            sequences = [request.sequence for request in running]
        if not running:
            return (), []
        self.decoder.controller.queue = len(scheduler) - len(scheduler.placed)
        return running, self.decoder.step(sequences, scheduler.chunks(costs))

    def _admit(self) -> None:
        while (request := self.scheduler.candidate()) is not None:
            placed = False
            try:
                self.decoder.admit(request.sequence, request.transcript)
                placed = self.scheduler.place(request)
            except OutOfMemory:
                if not self.scheduler.placed:
                    self.scheduler.remove(request)
                    raise
            finally:
                if not placed:
                    self.decoder.close(request.sequence)
            if not placed:
                return  # until a running request gives memory back

    def _begin(self) -> None:
        for request in self.scheduler.reading:
            self.decoder.begin(request.sequence)

    def _preempt(self) -> bool:
        """Take the memory of the newest request, which goes on later; False if it ran alone, and
        has ended now."""
        request = self.scheduler.preempt()
        if request is not None:
            self.decoder.close(request.sequence)
            return True
        for alone in self.scheduler.placed:
            self._leave(alone)
        return False

    def _leave(self, request: Request) -> None:
        """A request has ended, whatever it was doing."""
        self.scheduler.remove(request)
        if request.sequence.cache is not None:
            self.decoder.close(request.sequence)

    def _event(self, request: Request, commit: Commit) -> Event:
        stats = request.sequence.stats
        if stats.first_token_seconds is None:
            stats.first_token_seconds = perf_counter() - request.added
        completion = None
        if commit.finish_reason is not None:
            self._leave(request)
            completion = self._complete(request)
        text = request.transcript.take()
        return Event(request.sequence.id, text, commit.tokens, commit.sources, completion)

    def _complete(self, request: Request) -> Completion:
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
