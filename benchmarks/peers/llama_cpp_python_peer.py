"""llama-cpp-python under audit: its own prompt lookup, in Python over llama.cpp.

Runs in the environment that `make.py llama-cpp-python` makes; `paceline audit outside
llama-cpp-python` starts it.
"""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import Continuations, Distribution, Timing, claim_output, law_of, serve
from model_files import q8_gguf


def main() -> None:
    """Load the model with and without speculation and answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--files", type=Path, required=True, help="folder for files made here")
    parser.add_argument("--tokens", type=int, default=5, help="tokens of a draft")
    parser.add_argument("--weights", choices=("file", "q8_0"), default="file")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, help="of the processor; default: the engine's own")
    parser.add_argument("--plain", action="store_true", help="load nothing that drafts")
    arguments = parser.parse_args()
    weights = arguments.model
    if arguments.weights == "q8_0":
        weights = q8_gguf(arguments.model, arguments.files)
    lines = claim_output()

    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    def load(**extra: Any) -> Llama:
        return Llama(
            str(weights),
            n_ctx=arguments.context,
            logits_all=True,
            n_threads=arguments.threads,
            n_threads_batch=arguments.threads,
            verbose=False,
            **extra,
        )

    models = {False: load()}
    passes: list[None] = []
    if not arguments.plain:
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=arguments.tokens, max_ngram_size=3)
        models[True] = load(draft_model=lookup)
        evaluate = models[True].eval

        def counted(tokens: Any) -> None:
            passes.append(None)
            evaluate(tokens)

        models[True].eval = counted

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        model = models[speculation]
        out = []
        passes.clear()
        for seed in seeds:
            model.set_seed(seed)
            stream = model.generate(
                prompt, temp=temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0
            )
            out.append([int(next(stream)) for _ in range(tokens)])
            stream.close()
        if not speculation:
            return out, None
        return out, tokens * len(seeds) - len(passes)  # a pass brings one token of its own

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        begun = time.perf_counter()
        stream = models[speculation].generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0)
        row = [int(next(stream))]
        first = time.perf_counter() - begun
        row += [int(next(stream)) for _ in range(tokens - 1)]
        seconds = time.perf_counter() - begun
        stream.close()
        return {"tokens": row, "seconds": seconds, "first_seconds": first}

    def distribution(prompt: list[int], temperature: float) -> Distribution:
        model = models[False]
        model.reset()
        model.eval(prompt)
        return law_of(model.scores[len(prompt) - 1], temperature)

    about = {
        "engine": "llama-cpp-python",
        "version": version("llama-cpp-python"),
        "weights": weights.stem.rsplit(".", 1)[-1],
        "key-value cache": "f16",
        "drafting": f"prompt lookup, {arguments.tokens} tokens, n-grams up to 3",
    }
    serve(lines, about, continuations, distribution, timing)


if __name__ == "__main__":
    main()
