"""Request intake: prompts become token ids, options become checked sampling parameters.

And what comes of a request: events, the last of which has its completion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple, cast

from paceline.core.constraint import Constraint
from paceline.core.metrics import GenerationStats
from paceline.core.options import check_text
from paceline.core.target import LEAVING, SINKS, whole
from paceline.core.types import (
    UNLIMITED,
    CanvasParams,
    Capabilities,
    FinishReason,
    ProbArray,
    SamplingParams,
    Speculation,
    TokenLogprob,
)
from paceline.engine.hearing import Speech
from paceline.engine.looking import Shown
from paceline.errors import InvalidOption, PacelineError, PromptError
from paceline.models.config import Pooling
from paceline.models.text import Tokenizer
from paceline.sampling.processors import Breakers

Message = Mapping[str, Any]
# Text (a user turn, or raw text), chat messages, or token ids.
Prompt = str | Sequence[Message] | Sequence[int]
_WORD = 24  # characters in which a last word is looked for: not all scripts part words
_ENDLESS = 4096  # tokens that an endless text keeps, if nobody says
_FORMS = "a prompt is text, a list of messages, or a list of token ids"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request, see `Engine.prepare`."""

    tokens: tuple[int, ...]
    params: SamplingParams
    speculation: Speculation = UNLIMITED
    constraint: Constraint | None = None
    sample: int = 0
    resume: tuple[int, ...] = ()
    denoising: CanvasParams | None = None
    pooling: Pooling | None = None
    breakers: Breakers = field(default_factory=dict)
    speech: Speech | None = None
    open: bool = False
    window: int = 0
    pictures: tuple[Shown, ...] = ()

    @property
    def image_tokens(self) -> int:
        """Rows of its pictures."""
        return sum(each.rows for each in self.pictures)


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation.

    `text` is without end tokens and cut before a stop string; `token_ids` has the end token, if one
    came. `sources` names per token the drafter that proposed it, or None if the target chose it.
    `cached_tokens` of the prompt were found in the prefix cache. `prompt_logprobs` begins with the
    second token. `state`, float64 `[hidden_size]`, is there if it was asked for (`pooling`).
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    sources: tuple[str | None, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    stats: GenerationStats
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    state: ProbArray | None = None


class Event(NamedTuple):
    """Result of one step for one request; `completion` or `error` is set once it has ended.

    `text` is text that became final: empty while a character or stop string is incomplete.
    `logprobs` are those of `token_ids`, if asked for. An error is one of this request alone.
    `cached_tokens` are known from the first event on; `prompt_logprobs` stand in the first.
    `fills`: as of `Commit`.
    """

    request: int
    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str | None, ...]
    completion: Completion | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    error: PacelineError | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    fills: tuple[tuple[int, int], ...] = ()
    progress: PromptProgress | None = None


class PromptProgress(NamedTuple):
    """How far a prompt of `total` tokens is read, `seconds` after it came; `cached` were known."""

    total: int
    cached: int
    processed: int
    seconds: float


def window_of(endless: bool | int, capabilities: Capabilities, memory: int | None) -> int:
    """Return how many tokens an endless text keeps behind its first ones; 0 if it is none.

    `endless` is that number, or True for the usual one. `memory` is that of the target in tokens.

    InvalidOption: the target keeps all of a text, or cannot keep so many.
    """
    if endless is False:
        return 0
    if not capabilities.endless:
        raise InvalidOption(
            f"runtime '{capabilities.runtime}' lets no tokens leave texts of this model: endless "
            "is for runtimes cpu and reference, and layers that know places by distance alone"
        )
    most = (capabilities.max_context - whole(0)) // LEAVING * LEAVING
    if most < LEAVING:
        raise InvalidOption(
            f"endless texts need a context of at least {whole(LEAVING)} tokens, and this one holds "
            f"{capabilities.max_context}: leave endless out, or raise max_context or kv_tokens"
        )
    if endless is True:  # whatever the memory: equal fingerprints mean equal texts
        endless = min(most, _ENDLESS)
    if endless not in range(LEAVING, most + 1, LEAVING):
        raise InvalidOption(
            f"endless must be true or a multiple of {LEAVING} from {LEAVING} to {most}, which fits "
            f"into the context with {whole(0)} tokens more; it is {endless}"
        )
    if memory is not None and whole(endless) + 2 * SINKS > memory:
        raise InvalidOption(
            f"endless texts of {endless} tokens take {whole(endless) + 2 * SINKS} of the key-value "
            f"cache, which holds {memory}: ask for fewer, or load the model with a larger kv_tokens"
        )
    return endless


def parameters(
    params: SamplingParams, options: Mapping[str, Any], vocabulary: int
) -> SamplingParams:
    """Return sampling parameters with single fields replaced; InvalidOption if out of range."""
    unknown = set(options) - set(SamplingParams.__slots__)
    if unknown:
        raise InvalidOption(
            f"option {sorted(unknown)[0]!r} is unknown: use raw, system, speculation, constraint, "
            "sample, resume, denoising, prediction, speech, pictures, "
            f"{', '.join(SamplingParams.__slots__)}"
        )
    if isinstance(options.get("stop"), str):
        options = {**options, "stop": (options["stop"],)}
    params = replace(params, **options)
    listed = "logit_bias", "banned_tokens", "allowed_tokens", "forced_tokens", "stop_token_ids"
    for name in listed:
        given = getattr(params, name)
        for token in given.values() if name == "forced_tokens" else given:
            if not (isinstance(token, Integral) and 0 <= int(token) < vocabulary):
                raise InvalidOption(
                    f"{name} holds token {token!r}, but the vocabulary has ids 0 to "
                    f"{vocabulary - 1}"
                )
    if len(set(params.banned_tokens)) >= vocabulary:
        raise InvalidOption("banned_tokens holds the whole vocabulary: leave some token")
    if params.allowed_tokens and set(params.allowed_tokens) <= set(params.banned_tokens):
        raise InvalidOption("banned_tokens holds all of allowed_tokens: leave some token")
    return params


class BreakerTokens:
    """Tokens of sequence breakers, as llama.cpp finds them: whole in a token, or begun in one."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._size = vocabulary
        self._found: dict[str, dict[int, set[tuple[int, ...]]]] = {}

    def find(self, params: SamplingParams) -> Breakers:
        """Return the breakers of a request; none where DRY is off. Any thread may call this."""
        joined: dict[int, set[tuple[int, ...]]] = {}
        for text in params.dry_sequence_breakers if params.dry_multiplier else ():
            found = self._found.get(text)
            if found is None:
                if len(self._found) >= 256:
                    self._found.clear()
                found = self._found[text] = self._search(text)
            for token, tails in found.items():
                joined.setdefault(token, set()).update(tails)
        return {token: tuple(sorted(tails)) for token, tails in joined.items()}

    @cached_property
    def _words(self) -> list[bytes]:
        return [self._tokenizer.bytes_of(token) for token in range(self._size)]

    def _search(self, text: str) -> dict[int, set[tuple[int, ...]]]:
        whole = text.encode("utf-8", "surrogatepass")
        found: dict[int, set[tuple[int, ...]]] = {
            token: {()} for token, word in enumerate(self._words) if whole in word
        }
        for cut in range(1, len(whole)):
            begun = whole[:cut]
            heads = [i for i, word in enumerate(self._words) if word.endswith(begun)]
            # What is left of a character that is cut is no text: such a token begins nothing.
            rest = whole[cut:].decode("utf-8", "ignore").encode()
            if heads and rest == whole[cut:]:
                tail = tuple(self._tokenizer.encode(rest.decode())[:20])
                for token in heads:
                    if whole not in self._words[token]:
                        found.setdefault(token, set()).add(tail)
        return found


def token_ids(
    prompt: Prompt, tokenizer: Tokenizer, vocabulary: int, raw: bool, system: str | None
) -> list[int]:
    """Encode a prompt (see `Engine.add`); PromptError if it is empty or of no known form."""
    ids = encoded(prompt, tokenizer, raw, system)
    if not ids:
        raise PromptError("the prompt is empty: give some text")
    for token in (min(ids), max(ids)):  # those of a tokenizer that does not fit the model as well
        if not 0 <= token < vocabulary:
            raise PromptError(
                f"the prompt holds token {token}, but the vocabulary has ids 0 to {vocabulary - 1}"
            )
    return ids


def unsettled(prompt: Prompt) -> Prompt:
    """Return a prompt without the last word of its text, which may go on in other tokens.

    The tokens that both have in common stay as the text goes on, mostly: what a chat template
    closes a turn with is not among them.
    """
    if isinstance(prompt, str):
        kept = prompt.rstrip()
        if kept == prompt:
            head, tail = prompt[:-_WORD], prompt[-_WORD:]
            kept = head + "".join(re.split(r"(\s)", tail)[:-1]).rstrip()
        return kept
    if prompt and isinstance(prompt[-1], Mapping):
        *before, last = cast(Sequence[Message], prompt)
        text = last.get("content")
        return [*before, {**last, "content": unsettled(text)}] if isinstance(text, str) else prompt
    return prompt


def encoded(prompt: Prompt, tokenizer: Tokenizer, raw: bool, system: str | None) -> list[int]:
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
        raise PromptError(f"{_FORMS}, not {type(prompt).__name__}")
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], Mapping)):
        check_text("the prompt", prompt, PromptError)
    check_text("system", system, PromptError)
    if isinstance(prompt, str):
        if not (prompt if raw else prompt.strip()):
            return []
        return tokenizer.prompt(prompt, raw=raw, system=system)
    ids = [token for token in prompt if isinstance(token, int)]
    messages = [dict(message) for message in prompt if isinstance(message, Mapping)]
    if (ids and messages) or len(ids) + len(messages) != len(prompt):
        raise PromptError(_FORMS)
    return tokenizer.chat(messages) if messages else ids
