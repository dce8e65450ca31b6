"""A GPU in one command: tests, identity, what rows cost, speed, host time, then training.

    python -m benchmarks.gpu --out gpu --seconds 480

No network is needed: two Llamas of the shapes of SmolLM2-135M and Llama 3.2 1B are made of random
numbers, and --model may name one more (a directory or a GGUF file). Parts run in this order, each
with what time is left; what a part found is written at once to OUT/gpu.json. Training gets what
remains, with a checkpoint in OUT, and goes on with the next call. --device cpu tries the script
where there is no GPU, with small shapes.

Texts of random models are not language: drafts that copy are accepted where such a model goes in
circles, so a speed is that of so many tokens per forward and no more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from benchmarks.script import run_script

from paceline.core import tree
from paceline.core.target import Rows
from paceline.errors import InvalidOption
from paceline.lab.measure.machine import dumps, machine
from paceline.models.source import resolve
from paceline.registry.loading import load_model, make_engine

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
DRAFTERS = ("none", "prompt-lookup", "suffix-automaton")
TESTS = ("tests/runtimes/torch", "tests/runtimes/test_near_ties.py")
TOKENS, PROMPTS, CONTEXT = 128, 6, 256
# Width, inner width, layers, heads, heads of keys.
SHAPES = {"135m": (576, 1536, 30, 9, 3), "1b": (2048, 8192, 16, 32, 8)}
TRIED = {"135m": (64, 128, 2, 2, 1), "1b": (128, 256, 2, 4, 2)}
_VOCABULARY = 8192


@dataclass(frozen=True)
class Place:
    """Where the parts run: device, results, models by name, and when all must be over."""

    device: str
    out: Path
    models: dict[str, Path]
    end: float

    @property
    def left(self) -> float:
        return self.end - perf_counter()


def make(folder: Path, shape: Sequence[int]) -> Path:
    """Write a random Llama with a tokenizer of single bytes, unless it is there."""
    if (folder / "tokenizer.json").exists():
        return folder
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    width, inner, layers, heads, kv_heads = shape
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = {each: i for i, each in enumerate(letters)}
    names |= {f"<{i}>": i for i in range(len(letters), _VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def prompts() -> list[list[int]]:
    """Return prompts of token ids with repeated parts, as drafts that copy want them."""
    rng = np.random.default_rng(0)
    part = [rng.integers(0, 256, CONTEXT // 4).tolist() for _ in range(PROMPTS)]
    return [each * 4 for each in part]


def tests(place: Place) -> dict[str, Any]:
    """Run the tests of the PyTorch runtime on the device."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    own = {"PACELINE_TEST_DEVICE": place.device, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=max(place.left / 3, 1),
        check=False,
    )
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"exit": done.returncode, "summary": lines[-1] if lines else "", "failed": failed}


def identity(place: Place) -> dict[str, Any]:
    """Compare texts with drafts and in batches with plain ones, in float32."""
    loaded = load_model(str(place.models["135m"]), runtime="torch", device=place.device)
    found: dict[str, Any] = {}
    plain: list[list[int]] = []
    for drafter in DRAFTERS:
        engine = make_engine(loaded, drafter=drafter, max_batch=PROMPTS)
        asked = {"max_new_tokens": TOKENS, "ignore_eos": True}
        texts = [list(engine.generate(each, **asked).token_ids) for each in prompts()]
        plain = plain or texts
        same = [np.array_equal(one, other) for one, other in zip(plain, texts, strict=True)]
        apart = [
            next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
            for one, other, equal in zip(plain, texts, same, strict=True)
            if not equal
        ]
        found[drafter] = {"equal": sum(same), "of": len(same), "first_difference": apart}
    return found


def rows(place: Place) -> dict[str, Any]:
    """Time forwards of 1 to 128 rows behind a context, in bfloat16: milliseconds, and c(n)."""
    found = {}
    for name, path in place.models.items():
        target = load_model(
            str(path), runtime="torch", device=place.device, precision="bf16"
        ).target
        cache = target.open()
        target.forward([Rows.draft(cache, prompts()[0])])
        target.keep(cache, CONTEXT, ())
        times = {n: _forward(target, cache, n, place) for n in ROWS}
        found[name] = {
            "milliseconds": {n: round(1e3 * t, 3) for n, t in times.items()},
            "c": {n: round(t / times[1], 3) for n, t in times.items()},
        }
    return found


def _forward(target: Any, cache: Any, count: int, place: Place) -> float:
    seconds = []
    for _ in range(12):
        _wait(place)
        begun = perf_counter()
        target.forward([Rows.draft(cache, [1], tree.chain([1] * (count - 1)))])
        _wait(place)
        seconds.append(perf_counter() - begun)
        target.keep(cache, 0, ())
    return median(seconds[2:])


def _wait(place: Place) -> None:
    if place.device.startswith("cuda"):
        torch.cuda.synchronize()


def speed(place: Place) -> dict[str, Any]:
    """Time plain and drafted texts beside transformers' `generate`, by turns, in bfloat16."""
    from transformers import AutoModelForCausalLM

    found = {}
    for name, path in place.models.items():
        if path.is_file():
            continue  # transformers would take it apart into floats
        loaded = load_model(str(path), runtime="torch", device=place.device, precision="bf16")
        peer = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(place.device)
        engines = {each: make_engine(loaded, drafter=each) for each in DRAFTERS}

        def theirs(ids: list[int], peer: Any = peer) -> Any:
            given = torch.tensor([ids], device=place.device)
            settings = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "do_sample": False}
            return peer.generate(given, attention_mask=torch.ones_like(given), **settings)

        settings = {"max_new_tokens": TOKENS, "ignore_eos": True}
        runs: dict[str, Callable[[list[int]], Any]]
        runs = {each: partial(own.generate, **settings) for each, own in engines.items()}
        runs["transformers"] = theirs
        times: dict[str, list[float]] = {each: [] for each in runs}
        for ids in prompts():
            for each, run in runs.items():
                _wait(place)
                begun = perf_counter()
                run(ids)
                _wait(place)
                times[each].append(perf_counter() - begun)
        found[name] = {
            each: {"tokens_per_second": [round(TOKENS / t, 1) for t in seconds[1:]]}
            for each, seconds in times.items()
        }
    return found


def host(place: Place) -> dict[str, Any]:
    """Tell the share of a plain step that is not the forward: what the host adds."""
    found = {}
    for name, path in place.models.items():
        loaded = load_model(str(path), runtime="torch", device=place.device, precision="bf16")
        engine, target = make_engine(loaded, drafter="none"), loaded.target
        spent, forward = [0.0], target.forward

        def clocked(*given: Any, spent: list[float] = spent, inner: Any = forward) -> Any:
            begun = perf_counter()
            out = inner(*given)
            _wait(place)
            spent[0] += perf_counter() - begun
            return out

        engine.generate(prompts()[0], max_new_tokens=8, ignore_eos=True)
        setattr(target, "forward", clocked)  # noqa: B010 (an instance has its own)
        begun = perf_counter()
        engine.generate(prompts()[1], max_new_tokens=TOKENS, ignore_eos=True)
        whole = perf_counter() - begun
        delattr(target, "forward")
        found[name] = {
            "step_ms": round(1e3 * whole / TOKENS, 3),
            "host": round(1 - spent[0] / whole, 3),
        }
    return found


def training(place: Place) -> dict[str, Any]:
    """Train an EAGLE-3 of the first model for the time that is left; the next call goes on."""
    model = str(place.models["135m"])
    asks, data = place.out / "asks.jsonl", place.out / "data"
    lines = [
        {"question_id": i, "category": "counting", "turns": [f"Count to {i}."]} for i in range(512)
    ]
    asks.write_text("".join(json.dumps(each) + "\n" for each in lines))
    common = ["--model", model, "--device", place.device]
    texts = ["--texts", "256", "--new-tokens", "64", "--self-written", "0"]
    weights = ["--data", str(data), "--out", str(place.out / "eagle3.safetensors")]
    commands = [
        ["train", "data", str(asks), *common, *texts, "--out", str(data)],
        ["train", "drafter", "eagle3", *common, *weights],
    ]
    said: dict[str, Any] = {}
    for command in commands:
        begun = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            out, _ = process.communicate(timeout=max(place.left / 2, 1))
        except subprocess.TimeoutExpired:
            process.send_signal(2)  # Ctrl-C saves
            out, _ = process.communicate()
        output = out.strip().splitlines()
        said[" ".join(command[:2])] = {
            "seconds": round(perf_counter() - begun, 1),
            "exit": process.returncode,
            "said": output[-1] if output else "",
        }
    return said


PARTS: dict[str, Callable[[Place], dict[str, Any]]] = {
    each.__name__: each for each in (tests, identity, rows, speed, host, training)
}


def run(place: Place, wanted: Sequence[str]) -> dict[str, Any]:
    """Run parts and write what each found; a part that fails is told, and the next one runs."""
    file = place.out / "gpu.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    found |= {"machine": machine(), "device": _name(place.device), "torch": torch.__version__}
    for name in wanted:
        begun = perf_counter()
        try:
            if place.left <= 0:
                raise TimeoutError("no time was left")
            result = PARTS[name](place)
            if result.get("exit") or any(each.get("exit") in (1, 2) for each in _steps(result)):
                result["error"] = "a command failed"
        except KeyboardInterrupt:
            raise
        except Exception as error:  # a part tells what is wrong, and takes no other with it
            result = {"error": f"{type(error).__name__}: {error}"}
        result["seconds"] = round(perf_counter() - begun, 1)
        print(f"{name}: {json.dumps(result)}", file=sys.stderr)
        found[name] = result
        file.write_text(dumps(found))
    return found


def _steps(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in result.values() if isinstance(each, dict)]


def _name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def work(asked: argparse.Namespace) -> int:
    """Run what is asked for; 1 if a part failed."""
    end = perf_counter() + asked.seconds
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidOption("there is no CUDA device: run it where one is, or --device cpu")
    asked.out.mkdir(parents=True, exist_ok=True)
    shapes = SHAPES if asked.device.startswith("cuda") else TRIED
    models = {name: make(asked.out / name, shape) for name, shape in shapes.items()}
    if asked.model:
        models["given"] = resolve(asked.model).path
    found = run(Place(asked.device, asked.out, models, end), asked.parts)
    return int(any(found[name].get("error") for name in asked.parts))


def main() -> int:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--seconds", type=float, default=480, help="of all parts together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", help="one more to measure: a directory or a GGUF file")
    return run_script(parser, work, stopped="stopped; what was found is in {out}/gpu.json")


if __name__ == "__main__":
    sys.exit(main())
