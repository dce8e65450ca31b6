"""llama-cpp-python: llama.cpp compiled for this processor, called through its C interface.

Runs in the environment that `make.py llama-cpp-python` makes; `paceline audit outside
llama-cpp-python` starts it. Plain decoding, decoding with a draft model and logits go straight to
the library, as its own examples do; prompt lookup is that of the Python class.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import Continuations, Distribution, Timing, claim_output, law_of, options, serve
from model_files import coarse_gguf, q8_gguf

BATCH = 512
"""Most tokens of a call, and of a pass of the library."""

DRAFT = {"prompt-lookup": 5, "model": 3}
"""Tokens of a draft by default; 3 is llama.cpp's own default for draft models."""


class Session:
    """A model and its cache of one sequence, through the C interface."""

    def __init__(self, path: Path, context: int, threads: int | None) -> None:
        """Load a GGUF file; RuntimeError if the library does not take it."""
        import llama_cpp.llama_cpp as library

        self._library = library
        library.llama_backend_init()
        self._model = library.llama_model_load_from_file(
            str(path).encode(), library.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path.name}")
        setting = library.llama_context_default_params()
        setting.n_ctx, setting.n_batch, setting.n_ubatch = context, BATCH, BATCH
        if threads:
            setting.n_threads = setting.n_threads_batch = threads
        self._context = library.llama_init_from_model(self._model, setting)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context of {context} tokens")
        self._memory = library.llama_get_memory(self._context)
        vocabulary = library.llama_model_get_vocab(self._model)
        self.vocabulary: int = library.llama_vocab_n_tokens(vocabulary)
        self._batch = library.llama_batch_init(BATCH, 0, 1)
        self.length = 0

    def clear(self) -> None:
        """Forget all tokens."""
        self._library.llama_memory_clear(self._memory, False)
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forget tokens from a position on."""
        self._library.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.length = length

    def read(self, tokens: Sequence[int], every: bool = False) -> Any:
        """Append at most `BATCH` tokens; float32 logits of the last, or of every one, a view."""
        import numpy as np

        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = self.length + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = every or place == len(tokens) - 1
        if failed := self._library.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {failed}")
        self.length += len(tokens)
        rows = len(tokens) if every else 1
        pointer = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self.vocabulary))

    def prefill(self, tokens: Sequence[int]) -> Any:
        """Append any number of tokens; logits of the last one."""
        logits = None
        for start in range(0, len(tokens), BATCH):
            logits = self.read(tokens[start : start + BATCH])
        return logits


def decode(target: Session, prompt: list[int], tokens: int) -> Timing:
    """A greedy text and its times."""
    target.clear()
    begun = time.perf_counter()
    row = [int(target.prefill(prompt)[0].argmax())]
    first = time.perf_counter() - begun
    while len(row) < tokens:
        row.append(int(target.read(row[-1:])[0].argmax()))
    return {"tokens": row, "seconds": time.perf_counter() - begun, "first_seconds": first}


def decode_drafted(
    target: Session, small: Session, prompt: list[int], tokens: int, nodes: int
) -> Timing:
    """The same with drafts of `nodes` tokens by a small model, as `speculative-simple` has them."""
    target.clear()
    small.clear()
    begun = time.perf_counter()
    text = [*prompt, int(target.prefill(prompt)[0].argmax())]
    first = time.perf_counter() - begun
    while len(text) < len(prompt) + tokens:
        draft: list[int] = []
        logits = small.prefill(text[small.length :])
        while len(draft) < nodes:
            draft.append(int(logits[0].argmax()))
            if len(draft) < nodes:
                logits = small.read(draft[-1:])
        chosen = target.read([text[-1], *draft], every=True).argmax(axis=1).tolist()
        right = 0
        while right < nodes and chosen[right] == draft[right]:
            right += 1
        text += chosen[: right + 1]
        target.truncate(len(text) - 1)
        small.truncate(min(small.length, len(text) - 1))
    seconds = time.perf_counter() - begun
    row = text[len(prompt) :]
    # The last pass may bring more than was asked for; its time is counted with all of them.
    return {
        "tokens": row[:tokens],
        "seconds": first + (seconds - first) * (tokens - 1) / max(1, len(row) - 1),
        "first_seconds": first,
    }


def main() -> None:
    """Answer; a model is loaded when it is first used, but for plain decoding."""
    parser = options(__doc__)
    parser.add_argument("--weights", choices=("file", "q8_0"), default="file")
    arguments = parser.parse_args()
    weights = arguments.model
    if arguments.weights == "q8_0":
        weights = q8_gguf(arguments.model, arguments.files)
    nodes = arguments.tokens or DRAFT[arguments.draft]
    lines = claim_output()

    target = cache(lambda: Session(weights, arguments.context, arguments.threads))
    passes: list[None] = []

    @cache
    def small() -> Session:
        path = arguments.draft_model or coarse_gguf(arguments.model, arguments.files)
        return Session(path, arguments.context, arguments.threads)

    @cache
    def python_class(speculation: bool) -> Any:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        lookup = LlamaPromptLookupDecoding(num_pred_tokens=nodes, max_ngram_size=3)
        model = Llama(
            str(weights),
            n_ctx=arguments.context,
            logits_all=True,
            n_threads=arguments.threads,
            n_threads_batch=arguments.threads,
            verbose=False,
            draft_model=lookup if speculation else None,
        )
        evaluate = model.eval

        def counted(tokens: Any) -> None:
            passes.append(None)
            evaluate(tokens)

        model.eval = counted
        return model

    if arguments.draft == "model":
        small()
    if arguments.draft == "model" or not arguments.drafts:
        target()
    if arguments.draft == "prompt-lookup" and not arguments.plain:
        python_class(True)

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        if speculation and arguments.draft == "model":
            if temperature:
                raise RuntimeError("drafts of a model are verified greedily here")
            found = decode_drafted(target(), small(), prompt, tokens, nodes)["tokens"]
            return [found for _ in seeds], None
        model = python_class(speculation)
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
        if not speculation:
            return decode(target(), prompt, tokens)
        if arguments.draft == "model":
            return decode_drafted(target(), small(), prompt, tokens, nodes)
        begun = time.perf_counter()
        stream = python_class(True).generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0)
        row = [int(next(stream))]
        first = time.perf_counter() - begun
        row += [int(next(stream)) for _ in range(tokens - 1)]
        seconds = time.perf_counter() - begun
        stream.close()
        return {"tokens": row, "seconds": seconds, "first_seconds": first}

    def distribution(prompt: list[int], temperature: float) -> Distribution:
        target().clear()
        return law_of(target().prefill(prompt)[0], temperature)

    def logits(tokens: list[int], path: str) -> int:
        import numpy as np

        target().clear()
        parts = [
            target().read(tokens[start : start + BATCH], every=True).copy()
            for start in range(0, len(tokens), BATCH)
        ]
        np.save(path, np.concatenate(parts))
        return len(tokens)

    about = {
        "engine": "llama-cpp-python",
        "version": version("llama-cpp-python"),
        "weights": "q8_0" if arguments.weights == "q8_0" else "of the file",
        "key-value cache": "f16",
        "drafting": f"{arguments.draft}, {nodes} tokens",
    }
    serve(lines, about, continuations, distribution, timing, logits=logits)


if __name__ == "__main__":
    main()
