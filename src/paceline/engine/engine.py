"""Engine: admission, continuous batching, streaming and cancelling of requests."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

from paceline.core.constraint import Constraint
from paceline.core.options import check_text, require
from paceline.core.target import Listens, whole
from paceline.core.types import (
    UNLIMITED,
    CanvasParams,
    SamplingParams,
    Speculation,
    TokenLogprob,
)
from paceline.engine.decoder import Commit, Decoder
from paceline.engine.hearing import Hearing, Speech
from paceline.engine.looking import Looking, Shown
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.memory import capacity
from paceline.engine.prefill import Chunk, shared_prefix
from paceline.engine.requests import (
    BreakerTokens,
    encoded,
    parameters,
    token_ids,
    unsettled,
    window_of,
)
from paceline.engine.requests import Completion as Completion
from paceline.engine.requests import Event as Event
from paceline.engine.requests import Message as Message
from paceline.engine.requests import Prepared as Prepared
from paceline.engine.requests import Prompt as Prompt
from paceline.engine.requests import PromptProgress as PromptProgress
from paceline.engine.scheduler import Limits, Request, Scheduler
from paceline.engine.stopping import Transcript
from paceline.engine.turns import turns_of
from paceline.engine.writing import Writing
from paceline.errors import (
    ContextExceeded,
    EngineFailed,
    InvalidOption,
    OutOfMemory,
    PacelineError,
    PromptError,
    RequestFailed,
)
from paceline.models.config import Pooling
from paceline.models.pictures import Picture
from paceline.models.shown import BLIND, pictures_in
from paceline.models.text import Tokenizer
from paceline.sampling.generation import Generation, Pooled

if TYPE_CHECKING:
    from paceline.models.grammar import Grammars

_LOG = logging.getLogger(__name__)
_DIE_IN_FORKS = ("torch", "transformers")  # their pools of threads do


class Engine:
    """Generate text for any number of requests, `max_batch` at a time, in any number of threads.

    Most callers need only `generate` and `stream`. Servers drive `add`, `step` and `cancel`: the
    events of a request that was added come from `step`, so one thread should call it. Threads take
    turns, and a step goes on with the requests of all. Scheduling never changes the tokens of a
    request. A process that was forked off has the engine as it was, if its runtime allows.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        max_batch: int = 8,
        max_waiting: int | None = None,
        step_tokens: int | None = None,
        pool: int | None = None,
        prompt_policy: str = "fcfs",
        looking: Looking | None = None,
        config: Mapping[str, Any] | None = None,
        defaults: Mapping[str, float] | None = None,
    ) -> None:
        """Bind the parts; `paceline.load` is the usual way.

        Args:
            max_waiting: most requests beyond `max_batch`; None sets no limit.
            step_tokens: most rows of a forward that combines prefill and decoding; None chooses by
                measured costs.
            pool: fewest sequences of equal length that take a step without the others.
            prompt_policy: which of several prompts is read first, see `POLICIES`.
            looking: reads pictures, if the model does.
            config: what the engine was loaded with, for reports.
            defaults: fields of `SamplingParams` that the model's files ask for. `generate` and its
                like take what they are given: `engine.generate(prompt, **engine.defaults)`.
        """
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.config = dict(config or {})
        self.defaults = dict(defaults or {})
        decoder.isolate()
        limits = Limits(max_batch, max_waiting, step_tokens, pool, prompt_policy)
        self.scheduler = Scheduler(limits, decoder.memory)
        self._breakers = BreakerTokens(tokenizer, decoder.target.capabilities.vocab_size)
        capabilities, target = decoder.target.capabilities, decoder.target
        hears = isinstance(target, Listens) and target.mels
        self.hearing = Hearing(target) if hears else None
        self.looking = looking
        self._turns = turns_of(decoder.target, capabilities.runtime not in _DIE_IN_FORKS)
        self._mail: dict[int, deque[Event]] = {}  # by request, what its reader has not taken
        self._kept: list[Event] = []  # of requests without a reader: for `step`
        self._next_id = 0

    @overload
    def generate(
        self,
        prompt: str | Sequence[Message] | Sequence[int] | Prepared,
        params: SamplingParams | None = ...,
        **o: Any,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[Message]],
        params: SamplingParams | None = ...,
        **o: Any,
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Any, params: SamplingParams | None = None, **options: Any
    ) -> Completion | list[Completion]:
        """Generate to the end.

        Args:
            prompt: text, chat messages, or what `prepare` returned; a list of these is decoded as a
                ragged batch, and a list is returned.
            params: single fields may be given as keywords instead.
            **options: fields of `SamplingParams`, and others as for `prepare`.

        Raises:
            PromptError: the prompt is empty or malformed.
            ContextExceeded: it is longer than the context, or than the whole key-value cache.
            InvalidOption: an option is unknown or out of range.
            RequestFailed: an unexpected error ended the request.
        """
        many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
        requests: list[int] = []
        try:
            for each in prompt if many else [prompt]:
                requests.append(self._queue(each, params, options, mailed=True))
            done = [self._last_event(request) for request in requests]
        finally:
            for request in requests:
                self.leave(request)
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
        """Yield events: text as in `stream`, with tokens, their sources and the completion."""
        yield from self.follow(self._queue(prompt, params, options, mailed=True))

    def enter(self, prompt: Prepared) -> int:
        """Queue a request as `add`; its events are stored for `follow`, until `leave`."""
        return self._queue(prompt, None, {}, mailed=True)

    def follow(self, request: int) -> Iterator[Event]:
        """Yield the events of a request that was entered, and leave it."""
        try:
            while True:
                event = self._read(request)
                yield event
                if event.completion is not None:
                    return
        finally:
            self.leave(request)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        system: str | None = None,
        speculation: Speculation = UNLIMITED,
        constraint: Constraint | None = None,
        sample: int = 0,
        resume: Sequence[int] = (),
        denoising: CanvasParams | None = None,
        prediction: str | Sequence[int] = (),
        pooling: Pooling | None = None,
        speech: Speech | None = None,
        pictures: Sequence[Picture] = (),
        open: bool = False,
        endless: bool | int = False,
        **options: Any,
    ) -> Prepared:
        """Check and tokenise a request for `add`. Any thread may call this.

        Args:
            prompt: text (a user turn under the model's chat template), messages, or token ids.
            raw: do not apply the chat template.
            system: system message before a text prompt.
            speculation: limits of the drafts for this request; the output is the same.
            constraint: what the text must be, of `grammar` or one of your own.
            sample: number of the answer, if there are several to this prompt: each has randomness
                of its own, and those from 1 on share the cached prompt of another one.
            resume: the first tokens of the answer, decoded before or elsewhere: what follows is
                what would have followed there.
            denoising: how to fill the canvas, for models that do.
            prediction: text, or token ids, of any length that the answer is likely to repeat, such
                as a file to be changed: drafted from, and the output is the same.
            pooling: give the state of the prompt (`Completion.state`) in place of a text, that of
                its last token or the mean over all.
            speech: what to write down, for models that hear; the caller lets it go (`let_go`).
            pictures: of a prompt of token ids from `Tokenizer.chat`; messages have theirs.
            open: the prompt may go on, or become another (`replace`): it is read but for its last
                word, and not answered.
            endless: go on beyond the context, with the first tokens and the last so many; True
                chooses how many. The others are forgotten.
            **options: single fields of `SamplingParams`.

        Raises:
            PromptError: the prompt is empty or malformed.
            ContextExceeded: it is longer than the context, or than the whole key-value cache.
            InvalidOption: an option is unknown or out of range.
        """
        if not isinstance(speculation, Speculation):
            raise InvalidOption(
                f"speculation must be a Speculation, such as Speculation(enabled=False), not "
                f"{speculation!r}"
            )
        if not isinstance(denoising, CanvasParams | None):
            raise InvalidOption(
                f"denoising must be CanvasParams, as CanvasParams('counts') is, not {denoising!r}"
            )
        if constraint is not None and not hasattr(constraint, "start"):
            raise InvalidOption(
                "constraint must be made by engine.grammar, as engine.grammar.regex('[0-9]+') is, "
                f"not {repr(constraint)[:40]}"
            )
        require(sample >= 0, "sample", sample, "0 or more")
        target = self.decoder.target.capabilities
        if (speech is None) == self.hears:
            raise PromptError(
                "this model writes down sound: use `paceline transcribe`, or its route"
                if self.hears
                else "this model hears no sound: choose a Whisper"
            )
        params = parameters(params or SamplingParams(), options, target.vocab_size)
        self.decoder.check(params, denoising, constraint is not None)
        if pooling is not None:
            able = target.hidden_states and self.decoder.autoregressive
            if pooling not in ("last", "mean") or not able:
                raise InvalidOption(
                    f"pooling {pooling!r} is not possible with this model: use last or mean, and a "
                    "model that predicts the next token"
                )
            params = SamplingParams(max_new_tokens=1)
        written = speech is None and pooling is None and self.decoder.autoregressive
        if open and not written:
            raise InvalidOption(
                "open is for prompts that a model reads from left to right and answers: send this "
                "one when it is whole"
            )
        ids = token_ids(prompt, self.tokenizer, target.vocab_size, raw, system)
        if open and (less := unsettled(prompt)) is not prompt:
            settled = encoded(less, self.tokenizer, raw, system)
            ids = ids[: max(1, shared_prefix(ids, settled))]
        shown: tuple[Shown, ...] = ()
        if pictures := [*pictures, *pictures_in(prompt)]:
            looking = self._looking(params, open or bool(endless) or pooling is not None)
            shown = looking.find(pictures, ids, self.tokenizer)
        if resume:
            resume = token_ids(resume, self.tokenizer, target.vocab_size, True, None)
        check_text("prediction", prediction, PromptError)
        if prediction:
            known = self.tokenizer.encode(prediction) if isinstance(prediction, str) else prediction
            speculation = replace(speculation, prediction=tuple(known))
        for name in ("draft", "prediction"):
            if drafted := getattr(speculation, name):
                if not self.decoder.autoregressive:
                    raise InvalidOption(
                        f"a {name} is for models that predict the next token, and this one fills a "
                        "canvas: leave it out"
                    )
                token_ids(drafted, self.tokenizer, target.vocab_size, True, None)
        paged = self.decoder.memory
        window = window_of(endless, target, None if paged is None else capacity(paged))
        if window and not self.decoder.autoregressive:
            raise InvalidOption("endless is for models that read from left to right: leave it out")
        tokens = len(ids) + len(resume)
        self.scheduler.check_prompt(min(tokens, whole(window)) if window else tokens)
        if len(ids) >= target.max_context and not window:
            raise ContextExceeded(
                f"the prompt has {len(ids)} tokens and the context holds {target.max_context}, of "
                "which one must stay free: shorten the prompt"
            )
        if resume and params.mirostat:
            raise InvalidOption(
                "mirostat follows the surprise of every token, which a resumed answer does not "
                "bring along: leave out one of the two"
            )
        return Prepared(
            tokens=tuple(ids),
            params=params,
            speculation=speculation,
            constraint=constraint,
            sample=sample,
            resume=tuple(resume),
            denoising=denoising,
            pooling=pooling,
            breakers=self._breakers.find(params),
            speech=speech,
            open=open,
            window=window,
            pictures=shown,
        )

    def _looking(self, params: SamplingParams, otherwise: bool) -> Looking:
        # What reads pictures, if they go with what else is asked for.
        if self.looking is None:
            raise PromptError(f"among the prompt {BLIND}")
        if otherwise or params.prompt_logprobs is not None or not self.decoder.autoregressive:
            raise InvalidOption(
                "pictures are for answers to whole prompts: leave out prompt_logprobs, pooling, "
                "open and endless, and use a model that reads from left to right"
            )
        return self.looking

    def add(
        self, prompt: Prompt | Prepared, params: SamplingParams | None = None, **options: Any
    ) -> int:
        """Queue a request and return its id.

        Args:
            prompt: as for `prepare`, or what it returned, without further arguments.
            params: sampling parameters.
            **options: as for `prepare`.

        Raises:
            QueueFull: the queue is full.
            PromptError: the answer to resume has ended.
            PacelineError: as for `prepare`.
        """
        return self._queue(prompt, params, options, mailed=False)

    def replace(
        self,
        request: int,
        prompt: Prompt | Prepared,
        params: SamplingParams | None = None,
        **o: Any,
    ) -> None:
        """Go on with another prompt in place of that of an open request.

        What both begin with stays read. The last prompt is one that is not `open`: the answer is
        that to it, as if it had come at once, and `cached_tokens` says what was read before.

        Args:
            request: id of a request whose prompt was `open`.
            prompt: as for `add`; also all of the other arguments.
            params: sampling parameters.
            **o: as for `prepare`.

        Raises:
            PromptError: the request is not open, or not any more.
            PacelineError: as for `prepare`. The request stays as it is.
        """
        prepared = self._prepared(prompt, params, o)
        with self._turns:
            found = next((each for each in self.scheduler if each.sequence.id == request), None)
            if found is None:
                for event in self._mail.get(request, ()):
                    if event.error is not None:
                        raise event.error
            if found is None or not found.sequence.open:
                why = "has ended" if found is None else "is whole, and is answered"
                raise PromptError(
                    f"the prompt of request {request} {why}: change it before its end, or ask anew"
                )
            sequence, transcript = self._made(request, prepared)
            sequence.stats = found.sequence.stats
            if found.sequence.cache is not None:
                self.loop.rewrite(found.sequence, sequence, transcript)
            found.sample = prepared.sample
            self.scheduler.rewrite(found, sequence, transcript)

    def writing(self, params: SamplingParams | None = None, **options: Any) -> Writing:
        """Return a prompt to be written, which the model reads meanwhile; arguments as `prepare`.

        InvalidOption: the model does not read from left to right.
        """
        return Writing(self, params, options)

    def _prepared(
        self, prompt: Any, params: SamplingParams | None, options: Mapping[str, Any]
    ) -> Prepared:
        if not isinstance(prompt, Prepared):
            return self.prepare(prompt, params, **options)
        if params is not None or options:
            raise InvalidOption("a prepared request has its parameters: give them to prepare")
        return prompt

    def _queue(
        self,
        prompt: Any,
        params: SamplingParams | None,
        options: Mapping[str, Any],
        *,
        mailed: bool,
    ) -> int:
        prompt = self._prepared(prompt, params, options)
        request = None
        try:
            with self._turns:
                request = self._start(prompt)
                if mailed:  # events are stored until `_read`, whichever caller drives the steps
                    self._mail[request] = deque()
        except BaseException:  # of Ctrl-C, which has waited for the end of the turn
            if request is not None:
                self.leave(request)
            raise
        return request

    def _start(self, prompt: Prepared) -> int:
        self.scheduler.check_queue()
        sequence, transcript = self._made(self._next_id, prompt)
        self._next_id += 1
        if self.looking is not None:
            sequence.pictures, sequence.spans = self.looking.hold(prompt.pictures)
        self.scheduler.add(Request(sequence, transcript, prompt.sample))
        if prompt.speech is not None:
            prompt.speech.users += 1
        return sequence.id

    def _made(self, id: int, prompt: Prepared) -> tuple[Generation, Transcript]:
        params = prompt.params
        sequence = Generation.start(
            id,
            prompt.tokens,
            params,
            stream=prompt.sample,
            speculation=prompt.speculation,
            constraint=prompt.constraint,
            ends=tuple(self.decoder.stops.ends(params)),
            denoising=prompt.denoising,
            breakers=prompt.breakers,
        )
        sequence.speech = prompt.speech
        if prompt.pooling is not None:
            sequence.pooled = Pooled(prompt.pooling == "mean")
        transcript = Transcript(
            self.tokenizer, params.stop, params.shown_tokens, keep=params.keep_stop
        )
        if prompt.resume and not prompt.open:
            self._resume(sequence, prompt.resume, transcript)
        sequence.open, sequence.window = prompt.open, prompt.window
        return sequence, transcript

    @property
    def hears(self) -> bool:
        """Whether its requests are sounds to write down."""
        return self.hearing is not None

    @property
    def loop(self) -> AutoregressiveDecoder:
        """The decode loop, whose drafter, verifier and controller may be replaced.

        InvalidOption: the model fills a canvas, and has none.
        """
        if not isinstance(self.decoder, AutoregressiveDecoder):
            raise InvalidOption("the model fills a canvas, without drafts: load another sampler")
        return self.decoder

    def step(self) -> list[Event]:
        """Admit requests, prefill prompts, and decode one step for all running requests.

        Returns no events when no request is left, or when the step only did prefill. The error of
        a request is an event: it has ended then, and the others go on. Events that `generate`,
        `stream` and `events` wait for are theirs.

        Raises:
            EngineFailed: the process was forked in the midst of a step, or from a runtime that does
                not survive it; or a step calls its own engine.
        """
        with self._turns:
            self._advance()
            events, self._kept = self._kept, []
        return events

    def checked_step(self) -> list[Event]:
        """Take a `step`, but raise the error of a request: for those who want all or nothing."""
        events = self.step()
        for event in events:
            if event.error is not None:
                raise event.error
        return events

    def _advance(self) -> None:
        events: list[Event] = []
        try:
            while True:
                try:
                    events += map(self._event, self._round(events))
                    return
                except OutOfMemory as error:
                    if not self._preempt():
                        events.append(self._failed(self.scheduler.placed[0], error))
        finally:  # what has happened is told, whatever ends the step
            for event in events:
                mail = self._mail.get(event.request)
                (self._kept if mail is None else mail).append(event)

    def progress(self) -> dict[int, PromptProgress]:
        """Return how far prompts are read that are not read to their ends, by request."""
        out = {}
        for request in self.scheduler.reading:
            sequence, now = request.sequence, perf_counter() - request.added
            done, known = sequence.cache.length, sequence.stats.cached_tokens
            out[sequence.id] = PromptProgress(sequence.prompt_length, known, done, now)
        return out

    def cancel(self, request: int) -> Completion | None:
        """End a request. Return its completion so far (also its stream's last event), or None."""
        with self._turns:
            return self._cancel(request)

    def _cancel(self, request: int) -> Completion | None:
        self._kept = [event for event in self._kept if event.request != request]
        for each in self.scheduler:
            if each.sequence.id == request:
                each.sequence.finish_reason = "cancelled"
                self._finish(each)
                completion = self._complete(each)
                if (mail := self._mail.get(request)) is not None:
                    mail.append(Event(request, each.transcript.take(), (), (), completion))
                return completion
        return None

    def let_go(self, speech: Speech) -> None:
        """Free what was made of a sound once its requests have ended. Any thread may call this."""
        if self.hearing is not None:
            self._turns.later(partial(self.hearing.let_go, speech))

    @cached_property
    def grammar(self) -> Grammars:
        """Return constraints by JSON schema, regular expression, grammar, choices or tools.

        RuntimeUnavailable: the extra `grammar` is not installed.
        """
        from paceline.models.grammar import Grammars

        return Grammars(self.tokenizer, self.decoder.target.capabilities.vocab_size)

    @property
    def resting(self) -> bool:
        """Whether a step has nothing to do until a prompt that is still written goes on."""
        return self.scheduler.resting

    @property
    def pending(self) -> int:
        """Number of requests that have not ended, or whose end `step` has not told."""
        ended = sum(each.completion is not None or each.error is not None for each in self._kept)
        return len(self.scheduler) + ended

    def _read(self, request: int) -> Event:
        mail = self._mail[request]
        while not mail:
            with self._turns:
                if not mail:
                    self._advance()
                if not mail and all(each.sequence.id != request for each in self.scheduler):
                    raise EngineFailed("an interrupted step has lost the request: ask again")
                if not mail and self.scheduler.resting:
                    raise PromptError(
                        "the prompt is still written: it is answered once it is whole"
                    )
        event = mail.popleft()
        if event.error is not None:
            raise event.error
        return event

    def read(self, request: int) -> bool:
        """Take a step; return whether more of an open prompt can be read now."""
        with self._turns:
            if not self.scheduler.resting:
                self._advance()
            open = (each.sequence for each in self.scheduler if each.sequence.id == request)
            return any(each.unread for each in open) and not self.scheduler.resting

    def _last_event(self, request: int) -> Completion:
        while (completion := self._read(request).completion) is None:
            pass
        return completion

    def leave(self, request: int) -> None:
        """End a request that was entered, if it has not ended."""

        # Finalisers come here too, from any thread and in the midst of a step: nothing waits.
        def end() -> None:
            self._cancel(request)
            self._mail.pop(request, None)

        self._turns.later(end)

    def _resume(self, sequence: Generation, tokens: Sequence[int], transcript: Transcript) -> None:
        # From here on the request is like a preempted one: its tokens are read with the prompt.
        kept, reason = self.decoder.stops.cut(sequence, tokens, transcript)
        if reason is not None:
            raise PromptError(
                f"the answer to resume ended after {kept} tokens ({reason}): nothing follows"
            )
        self.decoder.resume(sequence, tokens)
        sequence.tokens += tokens
        sequence.sources += [None] * len(tokens)
        transcript.take()

    def _round(self, events: list[Event]) -> list[Commit]:
        # One forward: decode all running requests, with prefill chunks of others.
        scheduler, costs = self.scheduler, self.decoder.costs
        self._admit(events)
        self._begin(events)
        running = scheduler.running
        if not running and (chunks := scheduler.chunks(costs)):
            begin = perf_counter()
            failed = self._forward([], chunks)  # no request is decoding
            scheduler.took(sum(chunk.tokens for chunk in chunks), perf_counter() - begin)
            if failed:
                return failed
            self._begin(events)
            running = scheduler.running
        sequences = [request.sequence for request in running]
        while scheduler.short(sequences) and self._preempt():
            running = scheduler.running
            sequences = [request.sequence for request in running]
        if not running:
            return []
        self.decoder.waiting(len(scheduler) - len(scheduler.placed))
        running = scheduler.pooled(running)
        sequences = [request.sequence for request in running]
        return self._forward(sequences, scheduler.chunks(costs))

    def _forward(self, sequences: list[Generation], chunks: list[Chunk]) -> list[Commit]:
        decoder = self.decoder
        try:
            return decoder.step(sequences, chunks) if sequences else decoder.read(chunks)
        except OutOfMemory:
            raise
        except Exception:
            # Nothing has changed yet. Alone and without a draft, each shows whether it is its own.
            pass
        commits: list[Commit] = []
        for sequence in sequences:
            try:
                commits += decoder.step([sequence], drafts=False)
            except Exception as error:
                commits.append(Commit(sequence, error=error))
        for chunk in chunks:
            try:
                commits += decoder.read([chunk])
            except Exception as error:
                commits.append(Commit(chunk.sequence, error=error))
        return commits

    def _admit(self, events: list[Event]) -> None:
        while (request := self.scheduler.candidate()) is not None:
            placed = full = False
            sibling = self.scheduler.sibling(request)
            try:
                if not self._sensed(request.sequence):
                    return  # what it is of is encoded piece by piece
                self.decoder.admit(request.sequence, request.transcript, sibling)
                placed = self.scheduler.place(request)
                full = not placed
            except Exception as error:
                full = isinstance(error, OutOfMemory) and bool(self.scheduler.placed)
                if not full:
                    events.append(self._failed(request, error))
            finally:
                if not placed:
                    self.decoder.close(request.sequence)
            if full and not self._gives_way(self.scheduler.yielding(request)):
                return  # until a running request gives memory back

    def _sensed(self, sequence: Generation) -> bool:
        alone = not self.scheduler.placed
        if self.hearing is not None and sequence.speech is not None:
            return self.hearing.hear(sequence.speech, alone)
        return self.looking is None or self.looking.look(sequence.pictures, alone)

    def _begin(self, events: list[Event]) -> None:
        for request in self.scheduler.beginning:
            sequence = request.sequence
            try:
                self.decoder.begin(sequence)
            except Exception as error:
                events.append(self._failed(request, error))
            else:
                if not sequence.reading and not sequence.room:
                    sequence.finish_reason = "length"
                    events.append(self._event(Commit(sequence, finish_reason="length")))

    def _preempt(self) -> bool:
        # False if the newest request runs alone.
        return self._gives_way(self.scheduler.preempt())

    def _gives_way(self, request: Request | None) -> bool:
        if request is None:
            return False
        self.decoder.close(request.sequence)
        return True

    def _finish(self, request: Request) -> None:
        self.scheduler.remove(request)
        if (speech := request.sequence.speech) is not None and self.hearing is not None:
            self.hearing.let_go(speech)
        if self.looking is not None:
            self.looking.drop(request.sequence.pictures)
        if request.sequence.cache is not None:
            self.decoder.close(request.sequence)

    def _event(self, commit: Commit) -> Event:
        request = next(each for each in self.scheduler if each.sequence is commit.sequence)
        error = commit.error
        if error is None:
            try:
                return self._to_event(request, commit)
            except Exception as failure:
                error = failure
        return self._failed(request, error)

    def _to_event(self, request: Request, commit: Commit) -> Event:
        sequence, stats = request.sequence, request.sequence.stats
        prompt: tuple[TokenLogprob, ...] = ()
        if stats.first_token_seconds is None and (commit.tokens or commit.finish_reason):
            stats.first_token_seconds = perf_counter() - request.added
            prompt = tuple(sequence.prompt_logprobs)
        completion = None
        if commit.finish_reason is not None:
            self._finish(request)
            completion = self._complete(request)
        known = sequence.logprobs
        return Event(
            request=sequence.id,
            text=request.transcript.take(),
            token_ids=commit.tokens,
            sources=commit.sources,
            completion=completion,
            logprobs=tuple(known[len(known) - len(commit.tokens) :]) if known else (),
            cached_tokens=stats.cached_tokens,
            prompt_logprobs=prompt,
            fills=commit.fills,
        )

    def _failed(self, request: Request, error: Exception) -> Event:
        with suppress(Exception):  # the first error says more
            self._finish(request)
        if not isinstance(error, PacelineError):
            _LOG.error("request %d failed", request.sequence.id, exc_info=error)
            failed = RequestFailed(f"the request failed: {type(error).__name__}: {error}")
            failed.__cause__ = error
            error = failed
        return Event(request.sequence.id, "", (), (), error=error)

    def _complete(self, request: Request) -> Completion:
        sequence = request.sequence
        assert sequence.finish_reason is not None
        request.transcript.finish()
        return Completion(
            text=request.transcript.text,
            token_ids=tuple(sequence.generated),
            logprobs=tuple(sequence.logprobs),
            sources=tuple(sequence.sources),
            prompt_tokens=sequence.prompt_length,
            finish_reason=sequence.finish_reason,
            stats=sequence.stats,
            cached_tokens=sequence.stats.cached_tokens,
            prompt_logprobs=tuple(sequence.prompt_logprobs),
            state=None if sequence.pooled is None else sequence.pooled.total,
        )
