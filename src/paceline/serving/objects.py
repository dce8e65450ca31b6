"""Answers in OpenAI's shapes: chat completions and completions, whole and in chunks.

Both forms are made from the same events, so what is streamed joins to the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from time import time
from typing import Any, ClassVar

from starlette.responses import Response

from paceline.core.types import TokenLogprob
from paceline.engine.client_drafts import PREDICTION
from paceline.engine.engine import Completion, Event, Prepared, PromptProgress
from paceline.models.text import Offsets
from paceline.serving.answers.channels import ChannelParser
from paceline.serving.answers.parser import AnswerParser, Delta
from paceline.serving.http import json_response, sse
from paceline.serving.model import ServedModel, TokenTexts
from paceline.serving.plan import Plan
from paceline.serving.protocol import Body

Json = dict[str, Any]
_FINISH = {"stop": "stop", "loop": "stop", "length": "length", "cancelled": "stop"}


class Choice:
    """One answer as far as it has come, parted into reasoning, content and calls."""

    def __init__(self, parser: AnswerParser | None, resumed: str = "") -> None:
        """Without a parser all text is content. `resumed` was said before, and is left out."""
        self.content = ""
        self.reasoning = ""
        self.calls: list[Json] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.predicted = 0  # tokens that were drafted from the prediction
        self.reasoned: int | None = None  # tokens of the reasoning, once that is over
        self.begun = False
        self.told = False  # that the prompt is read
        self.offsets: Offsets | None = None  # of tokens, where they are asked for
        self.completion: Completion | None = None
        self.repeats = False  # a call came again, which ends the list of calls
        # Of a call that is so far like others before: its deltas, the length of its arguments, and
        # the arguments of these.
        self._alike: list[Delta] = []
        self._length = 0
        self._same: list[str] = []
        self._parser = parser
        before = parser.feed(resumed) if parser is not None else []
        self._called = [delta for delta in before if delta.name]

    def feed(self, event: Event) -> list[Delta]:
        """Add an event and return what is new."""
        self.token_ids += event.token_ids
        self.predicted += event.sources.count(PREDICTION)
        self.logprobs += event.logprobs
        self.completion = event.completion or self.completion
        if self._parser is None:
            deltas = [Delta("content", event.text)] if event.text else []
        else:
            deltas = self._parser.feed(event.text)
            if self.completion is not None:
                deltas += self._parser.finish()
        fresh = []
        for delta in deltas:
            for each in self._fresh(delta):
                self._add(each)
                fresh.append(each)
        if self.completion is not None and self._alike:
            self.repeats = any(len(given) == self._length for given in self._same)
            self._alike = []
        return fresh

    def _add(self, delta: Delta) -> None:
        if delta.kind == "content":
            self.content += delta.text
            return
        if delta.kind == "reasoning":
            self.reasoning += delta.text
            return
        if delta.name or not self.calls:  # or the rest of one that was begun before
            head = delta if delta.name else self._called[-1]
            function = {"name": head.name, "arguments": ""}
            self.calls.append({"id": head.id, "type": "function", "function": function})
        self.calls[-1]["function"]["arguments"] += delta.text

    def _fresh(self, delta: Delta) -> list[Delta]:
        # A weak model repeats its call until it is stopped: a call is held back while it is like
        # one before, and the list ends where it is the same.
        if self._alike and (delta.kind != "call" or delta.name):
            self._alike, self.repeats = [], True
        if self.repeats:
            return []
        if delta.kind != "call" or not (delta.name or self._alike):
            return [delta]
        if delta.name:
            functions = [call["function"] for call in self.calls]
            self._same = [each["arguments"] for each in functions if each["name"] == delta.name]
            self._length = 0
        self._same = [given for given in self._same if given.startswith(delta.text, self._length)]
        self._length += len(delta.text)
        self._alike.append(delta)
        if self._same:
            return []
        held, self._alike = self._alike, []
        return held

    @property
    def finish_reason(self) -> str | None:
        if self.completion is None:
            return None
        reason = _FINISH[self.completion.finish_reason]
        called = self._parser is not None and self._parser.calls > 0
        return "tool_calls" if called and (reason == "stop" or self.repeats) else reason

    def stop_reason(self, stop_tokens: Sequence[int]) -> int | None:
        """The token of `stop_tokens` that ended the text, if one did."""
        if self.completion is None or self.completion.finish_reason != "stop":
            return None
        last = self.token_ids[-1] if self.token_ids else None
        return last if last in stop_tokens else None


class Answer:
    """An answer to one request: `chunks` while it is decoded, `whole` at its end."""

    object: ClassVar[str]
    prefix: ClassVar[str]
    parted: ClassVar[bool] = False  # into reasoning, content and calls
    end: ClassVar[bytes] = b"data: [DONE]\n\n"
    media: ClassVar[str] = "text/event-stream"
    goes_on: ClassVar[bool] = False  # by `then`, with what is only known after a completion

    def __init__(
        self,
        model: ServedModel,
        plan: Plan,
        body: Body,
        id: str,
        accepted: Mapping[int, Counter[int]],
    ) -> None:
        """`accepted` is that of the outbox."""
        self.model = model
        self.plan = plan
        self.id = f"{self.prefix}-{id}"
        self.body = body
        self.choices = [self._choice(p) for p in plan.prompts for _ in range(plan.n)]
        self._accepted = accepted
        # What gives texts of single tokens, where they are asked for.
        shown = [each.params.shown_tokens for each in plan.prompts for _ in range(plan.n)]
        asked = getattr(body, "return_sources", None)
        self._streams = [model.tokenizer.stream(each) for each in shown if asked]
        self._head: Json = {
            "id": self.id,
            "object": self.object,
            "created": int(time()),
            "model": body.model or model.name,
            "system_fingerprint": model.fingerprint,
            "seed": plan.seed,
        }

    @property
    def done(self) -> bool:
        return all(choice.completion is not None for choice in self.choices)

    def opening(self) -> list[Json]:
        """Return the chunks before any token."""
        return []

    def feed(self, place: int, event: Event) -> list[Delta]:
        """Add an event to its choice and return what is new."""
        return self.choices[place].feed(event)

    def chunks(self, place: int, event: Event) -> list[Json]:
        """Add an event to its choice and return its chunks."""
        deltas, choice = self.feed(place, event), self.choices[place]
        parts = self._parts(place, choice, event, deltas) if event.progress is None else ()
        out = [self._chunk([part]) for part in parts]
        if out and self._streams:
            out[0]["paceline"] = self._sources(place, event)
        if self.plan.progress and (event.progress or (not choice.told and event.token_ids)):
            total = len(self.plan.prompts[place // self.plan.n].tokens)
            made = event.progress or PromptProgress(total, event.cached_tokens, total, 0.0)
            out.insert(0, self._progress(place, made))
            choice.told = event.progress is None
        if event.fills:
            out.insert(0, self._head | {"choices": [], "paceline": self._fills(place, event)})
        return out

    def failing(self, error: Json) -> list[Json]:
        """Return the chunks of an answer that ends with an error."""
        return [error]

    def encode(self, chunks: Sequence[Json]) -> bytes:
        """Return chunks as server-sent events."""
        return sse(chunks)

    def waiting(self) -> list[Json]:
        """Return what is sent while nothing is new, if clients of this API read such a thing."""
        return []

    def closing(self) -> list[Json]:
        """Return the chunks after the last token."""
        if not self.plan.include_usage:
            return []
        end = {"usage": self.usage(), "metrics": self.metrics()}
        return [self._head | {"choices": [], **end}]

    def whole(self) -> Json:
        """Return the whole answer, once it is done."""
        choices = [self._whole(place, choice) for place, choice in enumerate(self.choices)]
        end = {"usage": self.usage(), "metrics": self.metrics()}
        name = self.object.removesuffix(".chunk")
        return self._head | {"object": name, "choices": choices, **end}

    def response(self, headers: Mapping[str, str]) -> Response:
        """Return the whole answer as a client gets it."""
        return json_response(self.whole(), headers=headers)

    def then(self) -> Prepared | None:
        """Return what to decode after a completion, on any thread; None if that was the last."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Free what the engine holds for what would come then."""

    def usage(self) -> Json:
        """Return token counts so far. Those that are resumed count, as part of the answer."""
        done = [choice.completion for choice in self.choices if choice.completion is not None]
        prompt = sum(len(each.tokens) for each in self.plan.prompts)
        answer = sum(len(each.resume) for each in self.plan.prompts[:1])
        answer += sum(len(choice.token_ids) for choice in self.choices)
        cached = sum(completion.cached_tokens for completion in done[:: self.plan.n])
        pictures = sum(each.image_tokens for each in self.plan.prompts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {
                "cached_tokens": min(cached, prompt),
                **({"image_tokens": pictures} if pictures else {}),
            },
            "completion_tokens_details": {
                "reasoning_tokens": min(answer, self.reasoning_tokens()),
                **self._predicted(),
            },
        }

    def _predicted(self) -> Json:
        # What of the prediction stands in the answer, and what does not.
        whole = sum(len(each.speculation.prediction) for each in self.plan.prompts[:1])
        accepted = sum(min(choice.predicted, whole) for choice in self.choices)
        return {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": whole * len(self.choices) - accepted,
        }

    def stop_string(self, choice: Choice) -> str | None:
        """Return which stop string ended an answer, if one did."""
        done = choice.completion
        if done is None or done.finish_reason != "stop":
            return None
        read = self.model.tokenizer.stream(self.plan.params.shown_tokens)
        rest = read.feed(done.token_ids)[len(done.text) :]
        return next((each for each in self.plan.params.stop if rest.startswith(each)), None)

    def _progress(self, place: int, progress: PromptProgress) -> Json:
        # As llama.cpp's server tells it.
        name, nothing = ("text", "") if isinstance(self, TextAnswer) else ("delta", {})
        empty = {"index": place, name: nothing, "logprobs": None, "finish_reason": None}
        counts = {"total": progress.total, "cache": progress.cached}
        counts |= {"processed": progress.processed, "time_ms": round(1000 * progress.seconds)}
        return self._chunk([empty]) | {"prompt_progress": counts}

    def _sources(self, place: int, event: Event) -> Json:
        # New tokens with their drafters (null: the model itself), and the steps so far.
        read = self._streams[place].feed
        pairs = zip(event.token_ids, event.sources, strict=True)
        tokens = [{"text": read([token]), "source": source} for token, source in pairs]
        return {"tokens": tokens, "steps": self._accepted.get(place, Counter()).total()}

    def _fills(self, place: int, event: Event) -> Json:
        # Places of the answer that changed, final or not; null where a token was taken back.
        read, mask = self.model.tokenizer.decode, self.model.mask
        fills = [
            {"at": at, "text": None if token == mask else read([token], skip_special=False)}
            for at, token in event.fills
        ]
        return {"index": place, "fills": fills}

    def reasoning_tokens(self) -> int:
        """Return how many tokens the reasoning has, by itself; until it ends, nearly so."""
        total = 0
        for choice in self.choices:
            over = choice.completion is not None or choice.content or choice.calls
            if choice.reasoned is None and over:  # once: in a stream every chunk asks
                choice.reasoned = len(self.model.tokenizer.encode(choice.reasoning))
            thinks = len(choice.token_ids) if choice.reasoning else 0
            total += thinks if choice.reasoned is None else choice.reasoned
        return total

    def metrics(self) -> Json:
        """Return how drafts fared, as load generators read it."""
        steps: Counter[int] = Counter()
        for counts in self._accepted.values():
            steps.update(counts)
        done = [choice.completion for choice in self.choices if choice.completion is not None]
        drafted = sum(completion.stats.drafted_tokens for completion in done)
        number, accepted = steps.total(), sum(size * count for size, count in steps.items())
        return {
            "speculative_decoding": {
                "num_spec_steps": number,
                "num_spec_tokens": max(steps, default=0),
                "num_draft_tokens": drafted,
                "num_accepted_draft_tokens": accepted,
                "mean_acceptance_length": 1 + accepted / number if number else 1.0,
                "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
                "acceptance_histogram": [steps[size] for size in range(max(steps, default=0) + 1)],
            }
        }

    def _chunk(self, choices: list[Json]) -> Json:
        out = self._head | {"choices": choices}
        if self.plan.continuous_usage:
            out["usage"] = self.usage()
        elif self.plan.include_usage:
            out["usage"] = None
        return out

    def _choice(self, prompt: Prepared) -> Choice:
        return _parted(self.model, self.plan, prompt, self.id) if self.parted else Choice(None)

    def _parts(
        self, place: int, choice: Choice, event: Event, deltas: Sequence[Delta]
    ) -> Iterator[Json]:
        # The choices of the chunks of an event that was added already.
        raise NotImplementedError

    def _whole(self, place: int, choice: Choice) -> Json:
        raise NotImplementedError

    def _extras(self, place: int, choice: Choice, tokens: Sequence[int], first: bool) -> Json:
        # What other servers add to a choice.
        out: Json = {}
        if choice.completion is not None:
            out["stop_reason"] = choice.stop_reason(self.plan.params.stop_token_ids)
        if self.body.return_token_ids:
            out["token_ids"] = list(tokens)
            if first:
                out["prompt_token_ids"] = self.plan.prompts[place // self.plan.n].tokens
        if choice.completion is not None and self.body.prompt_logprobs is not None:
            found = choice.completion.prompt_logprobs
            out["prompt_logprobs"] = [None, *(_by_token(self.model.tokens, e) for e in found)]
        return out


class ChatAnswer(Answer):
    object = "chat.completion.chunk"
    prefix = "chatcmpl"
    parted = True

    def opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk([{"index": place, "delta": delta, "logprobs": None, "finish_reason": None}])
            for place in range(len(self.choices))
        ]

    def _parts(
        self, place: int, choice: Choice, event: Event, deltas: Sequence[Delta]
    ) -> Iterator[Json]:
        said = [_delta(delta) for delta in deltas]
        if not said and (event.token_ids or choice.completion is not None):
            said = [{}]
        first = not choice.begun
        choice.begun = choice.begun or bool(said)
        for number, delta in enumerate(said, 1):
            part: Json = {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}
            if number == len(said):  # what belongs to the event as a whole
                part["logprobs"] = self._logprobs(event.logprobs)
                part["finish_reason"] = choice.finish_reason
                part |= self._extras(place, choice, event.token_ids, first)
            yield part

    def _whole(self, place: int, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message |= {"content": choice.content or None, "tool_calls": choice.calls}
        return {
            "index": place,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            **self._extras(place, choice, choice.token_ids, True),
        }

    def _logprobs(self, found: Sequence[TokenLogprob]) -> Json | None:
        if self.plan.params.logprobs is None:
            return None
        return {"content": chat_logprobs(self.model.tokens, found), "refusal": None}


class TextAnswer(Answer):
    object = "text_completion"
    prefix = "cmpl"

    def _parts(
        self, place: int, choice: Choice, event: Event, deltas: Sequence[Delta]
    ) -> Iterator[Json]:
        first = not choice.begun
        if self.plan.echo and self.plan.params.logprobs is not None:
            # The prompt comes first, and its log-probabilities are known at the end.
            if choice.completion is not None:
                yield self._whole(place, choice)
            return
        choice.begun = True
        echo = self.plan.echo[place // self.plan.n] if self.plan.echo and first else ""
        yield {
            "index": place,
            "text": echo + event.text,
            "logprobs": self._logprobs(event.logprobs, place, choice),
            "finish_reason": choice.finish_reason,
            **self._extras(place, choice, event.token_ids, first),
        }

    def _whole(self, place: int, choice: Choice) -> Json:
        echo = self.plan.echo[place // self.plan.n] if self.plan.echo else ""
        choice.offsets = None
        found: list[TokenLogprob | int] = [*choice.logprobs]
        places: Sequence[int] = ()
        if self.plan.echo and choice.completion is not None:
            first = self.plan.prompts[place // self.plan.n].tokens[0]
            found = [first, *choice.completion.prompt_logprobs, *found]
            places = self.plan.places[place // self.plan.n] if self.plan.places else ()
        return {
            "index": place,
            "text": echo + choice.content,
            "logprobs": self._logprobs(found, place, choice, places),
            "finish_reason": choice.finish_reason,
            **self._extras(place, choice, choice.token_ids, True),
        }

    def _logprobs(
        self,
        found: Sequence[TokenLogprob | int],
        place: int,
        choice: Choice,
        places: Sequence[int] = (),
    ) -> Json | None:
        # `places` are those of a prompt's tokens, which stand first.
        if self.plan.params.logprobs is None:
            return None
        if choice.offsets is None:
            begin = len(self.plan.echo[place // self.plan.n]) if self.plan.echo else 0
            choice.offsets = Offsets(self.model.tokenizer, begin)
        rest = [each for each in found[len(places) :] if not isinstance(each, int)]
        begins = [*places, *(choice.offsets.feed(each.token_id) for each in rest)]
        return text_logprobs(self.model.tokens, found, begins)


class ItemAnswer(Answer):
    """One chat answer, told as items that are begun, get more, and end."""

    parted = True
    end = b""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._items: list[Json] = []
        self._kind = ""  # of the item that is open
        self._new: list[Json] = []  # what the last event brought

    def feed(self, place: int, event: Event) -> list[Delta]:
        deltas = super().feed(place, event)
        self._new = []
        for delta in deltas:
            if delta.kind != self._kind or delta.name:
                self._close()
                self._open(delta)
            self._more(delta)
        if self.done:
            self._finish()
        return deltas

    def chunks(self, place: int, event: Event) -> list[Json]:
        self.feed(place, event)
        return self._new

    def encode(self, chunks: Sequence[Json]) -> bytes:
        return sse(chunks, named=True)

    def _open(self, delta: Delta) -> None:
        self._kind = delta.kind
        calls = self.choices[0].calls
        call = next((call for call in calls if delta.id in (call["id"], "")), {})
        self._begin(delta.kind, call)

    def _close(self) -> None:
        if self._kind:
            self._end()
        self._kind = ""

    def _finish(self) -> None:
        self._close()

    # Each adds an item, or to the last one, and tells so in `_new`.

    def _begin(self, kind: str, call: Json) -> None:
        raise NotImplementedError

    def _more(self, delta: Delta) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


def _parted(model: ServedModel, plan: Plan, prompt: Prepared, request: str) -> Choice:
    """Return a choice that parts a chat answer as the model's family writes it."""
    style = model.style
    if not plan.tools and style.think is None:
        return Choice(None)
    head = model.tokenizer.decode(prompt.tokens[-32:], skip_special=False)
    parts = ChannelParser if style.said else AnswerParser
    parser = parts(style, plan.tools, inside=style.inside(head), request=request)
    shown = model.tokenizer.stream(prompt.params.shown_tokens)
    return Choice(parser, "".join(shown.feed([token]) for token in prompt.resume))


def _delta(delta: Delta) -> Json:
    if delta.kind == "content":
        return {"content": delta.text}
    if delta.kind == "reasoning":
        return {"reasoning_content": delta.text}
    call: Json = {"index": delta.index, "function": {"arguments": delta.text}}
    if delta.name:
        call |= {"id": delta.id, "type": "function"}
        call["function"]["name"] = delta.name
    return {"tool_calls": [call]}


def chat_logprobs(tokens: TokenTexts, found: Sequence[TokenLogprob]) -> list[Json]:
    def entry(token: int, logprob: float) -> Json:
        text, raw = tokens[token]
        return {"token": text, "logprob": logprob, "bytes": raw}

    return [
        entry(each.token_id, each.logprob) | {"top_logprobs": [entry(*top) for top in each.top]}
        for each in found
    ]


def text_logprobs(
    tokens: TokenTexts, found: Sequence[TokenLogprob | int], places: Sequence[int]
) -> Json:
    """Return log-probabilities as completions show them, with the places of tokens in the text.

    A token id alone is one that has no log-probability: a prompt's first. The committed token is
    always in `top_logprobs`, with the very same number.
    """
    out: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    out["text_offset"] = list(places)
    for each in found:
        token = each if isinstance(each, int) else each.token_id
        name = tokens.name(token)
        out["tokens"].append(name)
        if isinstance(each, int):
            out["token_logprobs"].append(None)
            out["top_logprobs"].append(None)
        else:
            tops = {tokens.name(top): logprob for top, logprob in reversed(each.top)}
            out["token_logprobs"].append(each.logprob)
            out["top_logprobs"].append(tops | {name: each.logprob})
    return out


def _by_token(tokens: TokenTexts, each: TokenLogprob) -> Json:
    # One token of `prompt_logprobs`, as vLLM shows it: by token id, with ranks.
    tops = {token: (logprob, rank + 1) for rank, (token, logprob) in enumerate(each.top)}
    tops.setdefault(each.token_id, (each.logprob, len(each.top) + 1))
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": tokens[token][0]}
        for token, (logprob, rank) in tops.items()
    }
