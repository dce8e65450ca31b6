"""llama.cpp under audit, its server's own speculation: prompt lookup, or a draft model.

Runs in the environment that `make.py llama-cpp` makes; `paceline audit outside llama-cpp` starts
it. The bindings are xllamacpp, which is the C++ server called in process.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from answering import Continuations, Distribution, Timing, claim_output, law_of, options, serve
from arrivals import Arrivals
from model_files import coarse_gguf, q8_gguf

LOOKUP = 5
"""Tokens of a looked-up draft."""

NGRAM = 2
"""Tokens that must recur for a draft."""

VOCABULARY = 10**6
"""Asks for the log-probabilities of all tokens."""


def main() -> None:
    """Load the model with and without speculation and answer."""
    parser = options(__doc__)
    parser.add_argument("--rule", choices=("match", "rejection"), default="match")
    parser.add_argument("--weights", choices=("file", "q8_0"), default="file")
    arguments = parser.parse_args()
    if arguments.rule == "rejection" and arguments.draft != "model":
        parser.error("--rule rejection needs --draft model: a looked-up draft has no law")
    weights = arguments.model
    if arguments.weights == "q8_0":
        weights = q8_gguf(arguments.model, arguments.files)
    lines = claim_output()

    import xllamacpp

    def load(speculation: bool) -> Any:
        setting = xllamacpp.CommonParams()
        setting.model.path = str(weights)
        setting.n_ctx = arguments.context * arguments.batch  # the slots share it
        setting.n_parallel = arguments.batch
        setting.warmup = False
        if arguments.threads:
            setting.cpuparams.n_threads = arguments.threads
        if speculation:
            speculate(setting.speculative)
        return xllamacpp.Server(setting)

    def speculate(setting: Any) -> None:
        kinds = xllamacpp.common_speculative_type
        if arguments.draft == "model":
            setting.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            setting.draft.mparams.path = str(
                arguments.draft_model or coarse_gguf(arguments.model, arguments.files)
            )
            if arguments.tokens:
                setting.draft.n_max = arguments.tokens
            if arguments.threads:
                setting.draft.cpuparams.n_threads = arguments.threads
            setting.draft.probabilistic = arguments.rule == "rejection"
        else:
            setting.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            setting.ngram_simple.size_n = NGRAM
            setting.ngram_simple.size_m = arguments.tokens or LOOKUP

    modes = (False,) if arguments.plain else (True,) if arguments.drafts else (True, False)
    servers = {speculation: load(speculation) for speculation in modes}

    def complete(speculation: bool, **request: Any) -> tuple[list[dict[str, Any]], int]:
        """What is known of each token, and how many of them were drafted."""
        whole_law = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
        answer = servers[speculation].handle_completions(
            {"ignore_eos": True, "n_probs": 1, **whole_law, **request}
        )
        if "choices" not in answer:
            raise RuntimeError(f"llama.cpp answers {answer}")
        drafted = answer["timings"].get("draft_n_accepted", 0)
        return answer["choices"][0]["logprobs"]["content"], drafted

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        rows, accepted = [], 0
        for seed in seeds:
            known, drafted = complete(
                speculation, prompt=prompt, temperature=temperature, n_predict=tokens, seed=seed
            )
            rows.append([each["id"] for each in known])
            accepted += drafted
        return rows, accepted if speculation else None

    def greedy(prompt: list[int] | list[list[int]], tokens: int) -> dict[str, Any]:
        """Without log-probabilities, and with the shortest of its chains of samplers."""
        return {
            **{"prompt": prompt, "n_predict": tokens, "ignore_eos": True},
            **{"temperature": 0.0, "samplers": ["top_k"], "top_k": 1},
            **{"return_tokens": True, "verbose": True},
        }

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        begun = time.perf_counter()
        answer = servers[speculation].handle_completions(greedy(prompt, tokens))
        seconds = time.perf_counter() - begun
        if "__verbose" not in answer:
            raise RuntimeError(f"llama.cpp answers {answer}")
        return {
            "tokens": answer["__verbose"]["tokens"],
            "seconds": seconds,
            "first_seconds": seconds - answer["timings"]["predicted_ms"] / 1000,
        }

    def batch(prompts: list[list[int]], speculation: bool, tokens: int) -> Timing:
        """Streamed: an answer as a whole would give the tokens of its first text alone."""
        arrivals = Arrivals(len(prompts))
        errors: list[Any] = []

        def take(part: dict[str, Any] | None) -> bool:
            if part is None:  # nothing to say yet
                return False
            if "__verbose" not in part:
                errors.append(part)
            else:
                said = part["__verbose"]
                arrivals.take({said["index"]: [] if said["stop"] else said["tokens"]})
            return False  # go on

        servers[speculation].handle_completions({**greedy(prompts, tokens), "stream": True}, take)
        if errors:
            raise RuntimeError(f"llama.cpp answers {errors[0]}")
        return arrivals.timing()

    def distribution(prompt: list[int], temperature: float) -> Distribution:
        known, _ = complete(False, prompt=prompt, temperature=0.0, n_predict=1, n_probs=VOCABULARY)
        logprobs = {each["id"]: each["logprob"] for each in known[0]["top_logprobs"]}
        return law_of(logprobs, temperature)

    if arguments.draft == "model":
        count = arguments.tokens or "its own number of"
        drafting = f"draft model, {count} tokens, {arguments.rule}"
    else:
        drafting = f"prompt lookup, {arguments.tokens or LOOKUP} tokens, n-grams of {NGRAM}"
    about = {
        "engine": "llama.cpp",
        "version": f"xllamacpp {version('xllamacpp')}",
        "weights": "q8_0" if arguments.weights == "q8_0" else "of the file",
        "key-value cache": "f16",
        "drafting": drafting,
    }
    serve(lines, about, continuations, distribution, timing, batch)


if __name__ == "__main__":
    main()
