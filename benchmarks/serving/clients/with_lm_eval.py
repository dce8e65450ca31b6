"""lm-eval: log-likelihoods by the remote tokenizer, equal to the library's own to the last bit.

The library's are in the file that PACELINE_SCORES names; `scores.py` writes it.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from benchmarks.serving.clients.checks import MODEL, URL
from benchmarks.serving.clients.scores import ITEMS
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

expected = os.environ.get("PACELINE_SCORES")
with tempfile.TemporaryDirectory() as folder:
    data = Path(folder, "items.jsonl")
    data.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    task = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
    }
    model = LocalCompletionsAPI(
        model=MODEL, base_url=f"{URL}/completions", tokenizer_backend="remote", num_concurrent=8
    )
    runs: list[list[Any]] = []
    for _ in range(2):  # The second finds its prompts in the prefix cache.
        result: Any = lm_eval.simple_evaluate(
            model=model, tasks=[task], task_manager=TaskManager(), bootstrap_iters=0
        )
        samples = sorted(result["samples"]["sums"], key=lambda s: s["doc_id"])
        runs.append([[s for (s, _), *_ in sample["resps"]] for sample in samples])
values = [[[float(score) for score in item] for item in run] for run in runs]
assert values[0] == values[1], "a second run differs"
print(f"{len(ITEMS)} items, twice, equal")
if expected:
    assert values[0] == json.loads(Path(expected).read_text()), "differs from the library"
    print("equal to the library's to the last bit")
