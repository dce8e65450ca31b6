"""transformers under audit: prompt lookup, or assisted generation with a draft model.

Runs in the environment that `make.py transformers` makes; `paceline audit outside transformers`
starts it.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import Continuations, Distribution, Timing, claim_output, law_of, options, serve
from arrivals import Arrivals
from model_files import coarse_gguf

PADDING = 0
"""A token to the left of shorter prompts of a batch, which attention masks."""


def main() -> None:
    """Load the model and answer."""
    parser = options(__doc__, tokens=8, context=None)
    arguments = parser.parse_args()
    lines = claim_output()

    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    def load(path: Path) -> Any:
        model = AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        ).eval()
        model.generation_config.eos_token_id = None  # texts go on after end tokens
        model.generation_config.pad_token_id = PADDING
        return model

    model = load(arguments.model)
    passes: list[None] = []
    model.register_forward_hook(lambda *_: passes.append(None))
    if arguments.draft == "model" and not arguments.plain:
        speculative = {
            "assistant_model": load(
                arguments.draft_model or coarse_gguf(arguments.model, arguments.files)
            )
        }
        drafting = "assisted generation, draft model, default draft lengths"
    else:
        speculative = {"prompt_lookup_num_tokens": arguments.tokens}
        drafting = f"prompt lookup, {arguments.tokens} tokens"

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        ids = torch.tensor([prompt])

        def generate(ids: torch.Tensor, seed: int, **extra: Any) -> list[list[int]]:
            torch.manual_seed(seed)
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                **sampling,
                **extra,
            )
            return [row[len(prompt) :].tolist() for row in out]

        if not speculation:
            return generate(ids.repeat(len(seeds), 1), seeds[0]), None
        passes.clear()
        rows = [generate(ids, seed, **speculative)[0] for seed in seeds]
        return rows, sum(map(len, rows)) - len(passes)  # a pass brings one token of its own

    class Stream:
        """Notes when tokens come; generation hands it the prompts first."""

        def __init__(self, texts: int) -> None:
            self.arrivals = Arrivals(texts)
            self._texts = texts
            self._begun = False

        def put(self, tokens: torch.Tensor) -> None:
            if self._begun:
                self.arrivals.take(dict(enumerate(tokens.reshape(self._texts, -1).tolist())))
            self._begun = True

        def end(self) -> None:
            pass

    def batch(prompts: list[list[int]], speculation: bool, tokens: int) -> Timing:
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), PADDING)
        mask = torch.zeros_like(ids)
        for number, prompt in enumerate(prompts):
            ids[number, longest - len(prompt) :] = torch.tensor(prompt)
            mask[number, longest - len(prompt) :] = 1
        stream = Stream(len(prompts))
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            do_sample=False,
            streamer=stream,
            **(speculative if speculation else {}),
        )
        return stream.arrivals.timing()

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        found = batch([prompt], speculation, tokens)
        return {**found, "tokens": found["tokens"][0]}

    @torch.no_grad()
    def distribution(prompt: list[int], temperature: float) -> Distribution:
        return law_of(model(torch.tensor([prompt])).logits[0, -1], temperature)

    about = {
        "engine": "transformers",
        "version": version("transformers"),
        "torch": version("torch"),
        "weights": "float32",
        "drafting": drafting,
    }
    serve(lines, about, continuations, distribution, timing, batch)


if __name__ == "__main__":
    main()
