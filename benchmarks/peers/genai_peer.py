"""OpenVINO GenAI under audit: prompt lookup, or a draft model.

Runs in the environment that `make.py genai` makes; `paceline audit outside genai` starts it.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import Continuations, Timing, claim_output, options, serve
from arrivals import Arrivals
from model_files import coarse_gguf, genai_model

CACHE_GIB = 2
"""Key-value cache where the schedule is set by hand; the library would take none then."""

ROWS = 8192
"""Most rows of a pass over several prompts; the library would read them in pieces of 256."""


def main() -> None:
    """Load the model with and without speculation and answer."""
    parser = options(__doc__, tokens=5)
    parser.add_argument("--precision", choices=("file", "int8", "fp32"), default="file")
    parser.add_argument("--cache", choices=("u8", "f32"), default="u8", help="key-value cache")
    parser.add_argument("--prefix-caching", choices=("on", "off"), default="on")
    arguments = parser.parse_args()
    lines = claim_output()

    import numpy as np
    import openvino as ov
    import openvino_genai

    precision = arguments.precision

    def converted(model: Path, name: str, precision: str) -> Path:
        """The library reads GGUF files itself; other precisions are made of them."""
        return (
            model if precision == "file" else genai_model(model, arguments.files / name, precision)
        )

    folder = converted(arguments.model, f"genai-{precision}", precision)
    properties: dict[str, Any] = {}
    if arguments.threads:
        properties["INFERENCE_NUM_THREADS"] = arguments.threads
    if precision == "fp32" or arguments.cache == "f32":  # bfloat16 would not take such a cache
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    if arguments.cache == "f32":
        properties["KV_CACHE_PRECISION"] = "f32"

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.enable_prefix_caching = arguments.prefix_caching == "on"
    scheduling.cache_size = CACHE_GIB
    if arguments.batch == 1:
        properties["ATTENTION_BACKEND"] = "PA"
        if arguments.prefix_caching == "off":
            properties["scheduler_config"] = scheduling

    def load(**extra: Any) -> Any:
        if arguments.batch == 1:
            return openvino_genai.LLMPipeline(str(folder), "CPU", **properties, **extra)
        scheduling.max_num_batched_tokens = ROWS
        return openvino_genai.ContinuousBatchingPipeline(
            str(folder), scheduling, "CPU", {**properties, **extra}
        )

    assistance: dict[str, Any] = {"num_assistant_tokens": arguments.tokens}
    if arguments.plain:
        pipes = {False: load()}
        drafting = "none"
    elif arguments.draft == "model":
        small = arguments.draft_model or converted(
            coarse_gguf(arguments.model, arguments.files), "genai-coarse", "int8"
        )
        shared = ("scheduler_config", "INFERENCE_NUM_THREADS")
        given = {key: properties[key] for key in shared if key in properties}
        draft = openvino_genai.draft_model(str(small), "CPU", **given)
        pipes = {True: load(draft_model=draft)}
        drafting = f"draft model, {arguments.tokens} tokens"
    else:
        pipes = {True: load(prompt_lookup=True)}
        assistance["max_ngram_size"] = 3
        drafting = f"prompt lookup, {arguments.tokens} tokens, n-grams up to 3"
    if not arguments.plain and not arguments.drafts:
        pipes[False] = load()

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        out, accepted = [], 0
        for seed in seeds:
            setting = openvino_genai.GenerationConfig(
                max_new_tokens=tokens,
                ignore_eos=True,
                do_sample=temperature > 0,
                rng_seed=seed,
                **({"temperature": temperature} if temperature else {}),
                **(assistance if speculation else {}),
            )
            answer = pipes[speculation].generate(ids, setting)
            out.append([int(token) for token in answer.tokens[0]])
            # A pass brings one token of its own.
            accepted += len(out[-1]) - len(answer.perf_metrics.raw_metrics.token_infer_durations)
        return out, accepted if speculation else None

    def greedy(speculation: bool, tokens: int) -> Any:
        return openvino_genai.GenerationConfig(
            max_new_tokens=tokens,
            ignore_eos=True,
            do_sample=False,
            **(assistance if speculation else {}),
        )

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        setting = greedy(speculation, tokens)
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        begun = time.perf_counter()
        answer = pipes[speculation].generate(ids, setting)
        seconds = time.perf_counter() - begun
        return {
            "tokens": [int(token) for token in answer.tokens[0]],
            "seconds": seconds,
            "first_seconds": answer.perf_metrics.get_ttft().mean / 1000,
        }

    def batch(prompts: list[list[int]], speculation: bool, tokens: int) -> Timing:
        pipe, setting = pipes[speculation], greedy(speculation, tokens)
        arrivals = Arrivals(len(prompts))
        handles = [
            pipe.add_request(number, ov.Tensor(np.array([prompt], dtype=np.int64)), setting)
            for number, prompt in enumerate(prompts)
        ]
        while pipe.has_non_finished_requests():
            pipe.step()
            step = {
                number: [token for part in handle.read().values() for token in part.generated_ids]
                for number, handle in enumerate(handles)
                if handle.can_read()
            }
            arrivals.take(step)
        return arrivals.timing()

    about = {
        "engine": "OpenVINO GenAI",
        "version": version("openvino-genai"),
        "weights": {
            "file": "of the file, as the library reads them",
            "int8": "int8, symmetric per row",
            "fp32": "float16, run in float32",
        }[precision],
        "key-value cache": arguments.cache,
        "prefix caching": arguments.prefix_caching,
        "drafting": drafting,
    }
    serve(lines, about, continuations, lambda prompt, temperature: None, timing, batch)


if __name__ == "__main__":
    main()
