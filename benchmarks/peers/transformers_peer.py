"""transformers under audit: prompt lookup, or assisted generation with a draft model.

Runs in the environment that `make.py transformers` makes; `paceline audit outside transformers`
starts it.
"""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import Continuations, Law, Timing, claim_output, law_of, serve
from model_files import coarse_gguf


def main() -> None:
    """Load the model and answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--files", type=Path, required=True, help="folder for files made here")
    parser.add_argument("--draft", choices=("prompt-lookup", "model"), default="prompt-lookup")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of a prompt-lookup draft")
    parser.add_argument("--threads", type=int, help="of the processor; default: the engine's own")
    parser.add_argument("--plain", action="store_true", help="load nothing that drafts")
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
        model.generation_config.pad_token_id = 0
        return model

    model = load(arguments.model)
    passes: list[None] = []
    model.register_forward_hook(lambda *_: passes.append(None))
    if arguments.draft == "model" and not arguments.plain:
        speculative = {"assistant_model": load(coarse_gguf(arguments.model, arguments.files))}
        drafting = "assisted generation, coarse draft model, default draft lengths"
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

    class Clock:
        """Notes when tokens come; generation hands it the prompt first."""

        def __init__(self) -> None:
            self.arrivals: list[tuple[float, int]] = []

        def put(self, tokens: torch.Tensor) -> None:
            self.arrivals.append((time.perf_counter(), tokens.numel()))

        def end(self) -> None:
            pass

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        clock, ids = Clock(), torch.tensor([prompt])
        begun = time.perf_counter()
        row = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            streamer=clock,
            **(speculative if speculation else {}),
        )[0, len(prompt) :]
        seconds = time.perf_counter() - begun
        first, count = clock.arrivals[1]
        return {
            "tokens": row.tolist(),
            "seconds": seconds,
            "first_seconds": first - begun,
            "first_tokens": count,
        }

    @torch.no_grad()
    def law(prompt: list[int], temperature: float) -> Law:
        return law_of(model(torch.tensor([prompt])).logits[0, -1], temperature)

    about = {
        "engine": "transformers",
        "version": version("transformers"),
        "torch": version("torch"),
        "weights": "float32",
        "drafting": drafting,
    }
    serve(lines, about, continuations, law, timing)


if __name__ == "__main__":
    main()
