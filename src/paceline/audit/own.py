"""Adapter of paceline itself for audits."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.audit.engine import Ask, Prompt, Tally, Token
from paceline.engine import Engine
from paceline.errors import InvalidOption
from paceline.loading import Loaded, make_engine
from paceline.text import Tokenizer
from paceline.types import SamplingParams

# Options, named as in `paceline.load`.
SETTINGS = ("drafter", "verifier", "nodes", "depth", "draft_model", "max_batch")


def encode(tokenizer: Tokenizer, text: str, chat: bool) -> tuple[int, ...]:
    """Encode `text`, as a user turn if `chat` and the tokenizer has a chat template."""
    if chat and tokenizer.chat_template is not None:
        return tuple(tokenizer.chat([{"role": "user", "content": text}]))
    return tuple(tokenizer.encode(text))


class OwnEngine:
    """A loaded model with and without a drafter."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        drafter: str = "auto",
        verifier: str = "auto",
        nodes: int | None = 8,
        depth: int | None = 8,
        draft_model: str | None = None,
        max_batch: int = 8,
    ) -> None:
        """Build both engines. Draft sizes are fixed: a controller might stop drafting."""
        on = make_engine(
            loaded,
            drafter=drafter,
            verifier=verifier,
            nodes=nodes,
            depth=depth,
            draft_model=draft_model,
            max_batch=max_batch,
        )
        # Autoregressive with the default rule: a lossy one changes the distribution even undrafted.
        off = make_engine(loaded, drafter="none", max_batch=max_batch)
        self._engines = {True: on, False: off}
        self._tally = Tally()

    def about(self) -> Mapping[str, str]:
        config = self._engines[True].config
        settings = {key: str(value) for key, value in config.items() if value is not None}
        return {"engine": "paceline", **settings, **self._tally.about()}

    def prompt(self, text: str, chat: bool) -> Prompt:
        return encode(self._engines[True].tokenizer, text, chat)

    def continuations(self, ask: Ask) -> list[tuple[Token, ...]]:
        engine = self._engines[ask.speculation]
        wanted = [
            engine.add(
                _ids(engine, ask.prompt),
                SamplingParams(
                    temperature=ask.temperature,
                    seed=seed,
                    max_new_tokens=ask.tokens,
                    ignore_eos=True,
                ),
            )
            for seed in ask.seeds
        ]
        done: dict[int, tuple[Token, ...]] = {}
        while len(done) < len(wanted):
            for event in engine.step():
                if event.completion is not None:
                    done[event.request] = event.completion.token_ids
                    if ask.speculation:
                        sources = event.completion.sources
                        self._tally.add(len(sources), sum(each is not None for each in sources))
        return [done[request] for request in wanted]

    def law(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        if not temperature > 0:
            raise InvalidOption(f"a law has a temperature above 0, not {temperature}")
        engine = self._engines[False]
        size = engine.decoder.target.capabilities.vocab_size
        answer = engine.generate(_ids(engine, prompt), max_new_tokens=1, logprobs=size)
        scaled = {token: value / temperature for token, value in answer.logprobs[0].top}
        peak = max(scaled.values())
        total = math.fsum(math.exp(value - peak) for value in scaled.values())
        return {token: math.exp(value - peak) / total for token, value in scaled.items()}

    def close(self) -> None:
        # The caller owns the model.
        ...


def _ids(engine: Engine, prompt: Prompt) -> list[int]:
    return engine.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
