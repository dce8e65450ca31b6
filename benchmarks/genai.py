"""Plain decoding: paceline beside OpenVINO GenAI, same weights, same precision, one process.

    pip install openvino-genai nncf
    python benchmarks/genai.py --precision int8 --rounds 5

GenAI reads GGUF files, but would keep the default model's 4-bit groups. So the weights are written
once more as a float16 GGUF, GenAI turns that into its own graph, and NNCF compresses it to
symmetric int8 per row: what paceline does to the same weights. Rounds alternate between the two.
"""

from __future__ import annotations

import argparse
import json
import statistics

from peers.model_files import genai_model

from paceline.core.cache import cache_dir
from paceline.core.target import RuntimeOptions
from paceline.models.source import resolve
from paceline.registry.loading import load_model, make_engine

PROMPTS = (
    "Explain why the sky is blue.",
    "Write a short story about a river.",
    "List ten animals and what they eat.",
)


def main() -> None:
    """Run the comparison and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("int8", "fp32"), default="int8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    import openvino_genai

    precision = arguments.precision
    source = resolve("smollm2-135m").path
    folder = genai_model(source, cache_dir() / "peers" / f"genai-{precision}", precision)
    # GenAI's own default quantises the KV cache; paceline keeps it in fp32. Both are measured.
    pipes = {
        f"genai-kv-{kv}": openvino_genai.LLMPipeline(
            str(folder),
            "CPU",
            **({"INFERENCE_PRECISION_HINT": "f32"} if arguments.precision == "fp32" else {}),
            **({"KV_CACHE_PRECISION": "f32"} if kv == "f32" else {}),
        )
        for kv in ("u8", "f32")
    }
    setting = openvino_genai.GenerationConfig(
        max_new_tokens=arguments.max_new_tokens, do_sample=False, ignore_eos=True
    )
    engine = make_engine(
        load_model(options=RuntimeOptions(precision=arguments.precision)), drafter="none"
    )

    engine.decoder.target.warm_up()

    def genai(name: str, prompt: str) -> float:
        metrics = pipes[name].generate([prompt], setting).perf_metrics
        return 1000 / metrics.get_tpot().mean

    def ours(prompt: str) -> float:
        out = engine.generate(prompt, max_new_tokens=arguments.max_new_tokens, ignore_eos=True)
        return out.stats.tokens_per_second

    speeds: dict[str, list[float]] = {name: [] for name in ("paceline", *pipes)}
    for round_index in range(arguments.rounds + 1):
        for prompt in PROMPTS:
            for name in speeds:
                speed = ours(prompt) if name == "paceline" else genai(name, prompt)
                if round_index:  # the first round warms up
                    speeds[name].append(speed)
    rows = {
        name: {
            "tokens_per_second": statistics.median(values),
            "low": min(values),
            "high": max(values),
            "ratio": statistics.median(
                a / b for a, b in zip(values, speeds["paceline"], strict=True)
            ),
        }
        for name, values in speeds.items()
    }
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    for name, row in rows.items():
        print(
            f"{name:16} {row['tokens_per_second']:6.1f} tokens/s  "
            f"({row['low']:.1f} to {row['high']:.1f})  {row['ratio']:.3f} of paceline"
        )


if __name__ == "__main__":
    main()
