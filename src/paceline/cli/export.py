"""`paceline export`: drafters for other engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report
from paceline.errors import InvalidOption


def export(
    drafter: Annotated[
        str,
        typer.Argument(
            metavar="WEIGHTS",
            help="Weights of `paceline train drafter` (*.safetensors), or a model.",
        ),
    ],
    out: Annotated[Path, "Folder to write."],
    to: Annotated[str, "The engine: vllm."] = "vllm",
    model: o.Model = "smollm2-135m",
    force: Annotated[bool, "Write over an older export."] = False,
    as_json: o.AsJson = False,
) -> None:
    """Write a drafter as another engine loads it: eagle3, medusa, draft-lm, s2d, or a model."""
    if to != "vllm":
        raise InvalidOption(f"--to {to} is unknown: use vllm")

    from paceline.lab.export.layout import check_folder, write_layout
    from paceline.lab.export.vllm import vllm_layout

    check_folder(out, force)
    layout = vllm_layout(drafter, model)
    write_layout(layout, out, force)
    depth = layout.depth or 4
    settings = {"method": layout.method, "model": str(out), "num_speculative_tokens": depth}
    size = sum(array.nbytes for array in layout.tensors.values())
    figures = {
        "folder": str(out),
        "engine": to,
        "speculative_config": settings,
        "most_tokens": layout.depth,
        "tensors": {name: list(array.shape) for name, array in layout.tensors.items()},
        "bytes": size,
    }
    lines = (
        f"{out}: {layout.method}, {len(layout.tensors)} tensors, {size / 2**20:.1f} MiB\n"
        f"vLLM takes it with --speculative-config '{json.dumps(settings)}'"
    )
    report(figures, lines, as_json=as_json)
