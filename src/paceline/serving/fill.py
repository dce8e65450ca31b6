"""Fill in the middle: prompts of a text's two sides, and llama.cpp's route for it."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from paceline.engine.engine import Event
from paceline.models.text import Tokenizer
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer
from paceline.serving.plan import Plan, check_length, plan_completion
from paceline.serving.protocol import BadRequest, CompletionRequest, Several

Json = dict[str, Any]
# Names of the tokens in files that do not say which they are.
_NAMES = {
    "prefix": "<|fim_prefix|> <fim_prefix> <fim-prefix> <\uff5cfim▁begin\uff5c> ▁<PRE> <PRE>",
    "suffix": "<|fim_suffix|> <fim_suffix> <fim-suffix> <\uff5cfim▁hole\uff5c> ▁<SUF> <SUF>",
    "middle": "<|fim_middle|> <fim_middle> <fim-middle> <\uff5cfim▁end\uff5c> ▁<MID> <MID>",
    "repo": "<|repo_name|> <|fim_repo|> <reponame> <fim-repo>",
    "file": "<|file_sep|> <file_sep> <filename>",
}


class Extra(Struct):
    text: str
    filename: str = "snippet"


class InfillRequest(Several, kw_only=True):
    unheeded: ClassVar[tuple[str, ...]] = (
        "prompt_logprobs",
        "return_token_ids",
        "return_sources",
        "return_progress",
        "stream_options",
    )
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] | None = None
    prompt: str = ""


def fill_prompt(
    tokenizer: Tokenizer,
    before: str,
    after: str,
    files: list[Extra] | None = None,
    begun: str = "",
    field: str = "suffix",
) -> list[int]:
    """Return a prompt for what stands between two texts, and begins with `begun`.

    Its tokens are those that the model was trained with; texts spell none. BadRequest, for
    `field`, if the model has no such tokens.
    """
    known = {kind: _token(tokenizer, kind) for kind in _NAMES}
    if None in (known["prefix"], known["suffix"], known["middle"]):
        raise BadRequest(
            f"{field}: the model has no tokens to fill in the middle: leave it out, or take a "
            "model that has, such as Qwen2.5-Coder",
            field,
        )
    parts: list[str | int | None] = [*tokenizer.around[0]]
    if files and None in (known["repo"], known["file"]):
        parts += [f"\n\n--- {each.filename} ---\n\n{each.text}" for each in files]
    elif files:
        parts += [known["repo"], "repository\n"]
        for each in files:
            parts += [known["file"], f"{each.filename}\n{each.text}"]
        parts.append(known["file"])
    parts += [known["prefix"], before, known["suffix"], after, known["middle"], begun]
    return [
        token
        for part in parts
        for token in (tokenizer.plain(part) if isinstance(part, str) else [part])
        if token is not None
    ]


def _token(tokenizer: Tokenizer, kind: str) -> int | None:
    said = tokenizer.special_tokens.get(f"fim_{kind}_token")
    names = [said] if said else _NAMES[kind].split()
    found = (tokenizer.core.token_to_id(name) for name in names)
    return next((each for each in found if each is not None), None)


def plan_filling(model: ServedModel, body: CompletionRequest) -> Plan:
    """Return the plan of a completion, which fills in if there is a suffix."""
    if not body.suffix:
        return plan_completion(model, body)
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not all(isinstance(each, str) for each in given):
        raise BadRequest("prompt: beside a suffix it must be text", "prompt")
    if body.echo:
        raise BadRequest("echo: there is none beside a suffix: leave it out", "echo")
    check_length(model, [*map(str, given), body.suffix], "prompt")
    return _filling(model, body, [fill_prompt(model.tokenizer, str(p), body.suffix) for p in given])


def plan_infill(model: ServedModel, body: InfillRequest) -> Plan:
    """Return the plan of a middle as llama.cpp asks for it."""
    own: Json = {name: getattr(body, name) for name in Several.__struct_fields__}
    if (body.n or 1) > 1:
        raise BadRequest("n: this route gives one middle: leave it out", "n")
    before, after, extra = body.input_prefix, body.input_suffix, body.input_extra
    texts = [before, after, body.prompt, *(each.text for each in extra or ())]
    check_length(model, texts, "input_prefix")
    ids = fill_prompt(model.tokenizer, before, after, extra, body.prompt, "input_suffix")
    asked = CompletionRequest(**own, prompt=[ids])
    asked.temperature = 0.8 if body.temperature is None else body.temperature
    return _filling(model, asked, [ids])


def _filling(model: ServedModel, body: CompletionRequest, prompts: list[list[int]]) -> Plan:
    # Whatever special token comes, the middle is over.
    body.stop_token_ids = [*(body.stop_token_ids or ()), *model.tokenizer.special_ids.values()]
    body.prompt = [*prompts]
    return plan_completion(model, body)


class InfillAnswer(Answer):
    object = "infill"
    prefix = "infill"
    end = b""

    def chunks(self, place: int, event: Event) -> list[Json]:
        self.feed(place, event)
        if not event.text:
            return []
        tokens = list(event.token_ids)
        return [{"index": place, "content": event.text, "tokens": tokens, "stop": False}]

    def closing(self) -> list[Json]:
        return [self.whole() | {"content": "", "tokens": []}]

    def whole(self) -> Json:
        choice, counts = self.choices[0], self.usage()
        done = choice.completion
        assert done is not None  # it has ended
        word = self.stop_string(choice)
        ended = "limit" if choice.finish_reason == "length" else "word" if word else "eos"
        stats = done.stats
        return {
            "index": 0,
            "content": choice.content,
            "tokens": choice.token_ids,
            "id_slot": 0,
            "stop": True,
            "stop_type": ended,
            "stopping_word": word or "",
            "truncated": False,
            "tokens_predicted": counts["completion_tokens"],
            "tokens_evaluated": counts["prompt_tokens"],
            "tokens_cached": done.cached_tokens,
            "timings": {
                "cache_n": done.cached_tokens,
                "prompt_n": counts["prompt_tokens"] - done.cached_tokens,
                "prompt_ms": 1000 * stats.prefill_seconds,
                "predicted_n": counts["completion_tokens"],
                "predicted_ms": 1000 * stats.decode_seconds,
                "predicted_per_second": stats.tokens_per_second,
            },
            **{name: self._head[name] for name in ("model", "system_fingerprint", "seed")},
        }
