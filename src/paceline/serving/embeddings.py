"""Embeddings: the state of a text, as the model's file says, of length 1."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Raw, Struct
from msgspec.json import encode

from paceline.core.types import ProbArray
from paceline.errors import PromptError
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer
from paceline.serving.plan import Plan, check_length, prompts_of
from paceline.serving.protocol import BadRequest, Count, Token

Json = dict[str, Any]


class StatesRequest(Struct, kw_only=True):
    """What requests for states have in common; `dimensions` must be the model's."""

    input: str | Annotated[list[str | Token | list[Token]], Meta(min_length=1, max_length=2048)]
    model: str | None = None
    dimensions: Annotated[int, Meta(ge=0)] | None = None


class EmbeddingsRequest(StatesRequest, kw_only=True):
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


def plan_states(model: ServedModel, body: StatesRequest) -> Plan:
    """Return a plan that gives the states of texts or of token ids; BadRequest names the input."""
    size = model.engine.decoder.target.capabilities.hidden_size
    if body.dimensions not in (None, 0, size):
        raise BadRequest(
            f"dimensions: this model's embeddings have {size}: leave it out", "dimensions"
        )
    given, prompts = prompts_of(body.input, "input"), []
    check_length(model, [each for each in given if isinstance(each, str)], "input")
    for i, each in enumerate(given):
        ids = model.tokenizer.prompt(each, raw=True) if isinstance(each, str) else each
        try:
            prompts.append(model.engine.prepare(ids, raw=True, pooling=model.pooling))
        except PromptError as error:
            raise BadRequest(f"input[{i}]: {error}", "input") from error
    return Plan(prompts, 0, waves=True)


class EmbeddingAnswer(Answer):
    object = "list"
    prefix = "embd"

    def whole(self) -> Json:
        count = self.usage()["prompt_tokens"]
        packed = getattr(self.body, "encoding_format", None) == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": written(state, packed)}
            for i, state in enumerate(self.states())
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        head = {name: self._head[name] for name in ("object", "model", "system_fingerprint")}
        return head | {"data": data, "usage": usage}

    def states(self) -> list[ProbArray]:
        """Return the states, float64, each of length 1."""
        out = []
        for choice in self.choices:
            assert choice.completion is not None  # it is done
            state = choice.completion.state
            assert state is not None  # it was asked for
            out.append(state / (float(np.sqrt(np.sum(state * state))) or 1.0))
        return out


def written(state: ProbArray, packed: bool = False) -> str | Raw:
    """Return a state as text, or as JSON, of which thousands at once would hold Python's lock."""
    if packed:
        return b64encode(state.astype("<f4").tobytes()).decode()
    return Raw(encode(state.astype(np.float32).tolist()))
