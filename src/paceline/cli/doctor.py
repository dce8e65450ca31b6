"""`paceline doctor`: what is installed, what it costs here, and whether it is exact here."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.errors import PacelineError
from paceline.target import RuntimeOptions
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.loading import Loaded

_PACKAGES = {
    "numpy": None,
    "openvino": "openvino",
    "torch": "torch",
    "transformers": "transformers",
}
"""Packages that matter here, with the extra that brings each."""


def doctor(
    model: o.Model = "smollm2-135m",
    runtime: o.Runtime = "auto",
    device: o.Device = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave the model out.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Report on this machine: packages, costs of forwards, exactness and fidelity."""
    checked = o.runtime_options(device, precision, threads=threads)
    o.check_names(runtime, "auto", "auto")

    from paceline.bench.machine import machine
    from paceline.cli.output import print_json, remark
    from paceline.models.cache import cache_dir

    directory = cache_dir()
    report: dict[str, Any] = {
        "versions": _versions(),
        "machine": machine(),
        "cache": {"path": str(directory), "mib": _size(directory)},
    }
    report["auto_runtime"] = _auto(device)
    problem: PacelineError | None = None
    if not quick:
        if not as_json:
            remark("loading and measuring; this takes a minute or two")
        try:
            report |= _measure(model, runtime, checked)
        except PacelineError as error:  # what is known so far may explain it
            problem = error
    if as_json:
        print_json(report)
    else:
        _print(report)
    if problem is not None:
        raise problem


def _measure(model: str, runtime: str, options: RuntimeOptions) -> dict[str, Any]:
    """The part of the report that needs a model."""
    from paceline import loading

    begin = perf_counter()
    loaded = loading.load_model(model, runtime=runtime, options=options)
    seconds = perf_counter() - begin
    return {
        "model": {**_model(loaded), "load_seconds": seconds},
        "c_n": loaded.costs.curve(),
        "forward_ms": round(1000 * loaded.costs.time(1), 2),
        "noise_floor": _noise(loaded, model),
        "fidelity": _fidelity(loaded, model),
    }


def _versions() -> dict[str, str | None]:
    """Version by package, None where it is missing."""
    out: dict[str, str | None] = {"python": platform.python_version(), "paceline": __version__}
    for package in _PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = None
    return out


def _size(directory: Path) -> float:
    """MiB of all files below a directory."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # a file of another process that is gone by now
            continue
    return round(total / 2**20, 1)


def _auto(device: str | None) -> str:
    """What runtime "auto" would be for a model of the Llama family."""
    from paceline.loading import installed

    wanted = ("torch",) if device not in (None, "cpu") else ("openvino", "torch")
    found = next((name for name in wanted if installed(name)), None)
    return found or f"none installed: pip install 'paceline[{wanted[0]}]'"


def _model(loaded: Loaded) -> dict[str, Any]:
    capabilities = loaded.target.capabilities
    return {
        "name": loaded.source.name,
        "runtime": capabilities.runtime,
        "device": capabilities.device,
        "precision": capabilities.precision,
        "layout": capabilities.layout,
        "bit_exact": capabilities.bit_exact,
    }


def _noise(loaded: Loaded, model: str) -> dict[str, Any]:
    """Noise by layout: that of the loaded target and, where the runtime has two, the other."""
    from paceline import loading
    from paceline.bench.builtin import NOISE_TEXT
    from paceline.bench.noise import noise_floor

    tokens = loaded.tokenizer.encode(NOISE_TEXT)
    own = loaded.target.capabilities
    out: dict[str, Any] = {own.layout: noise_floor(loaded.target, tokens)}
    if own.runtime == "openvino":
        options = replace(loaded.options, layout="masked")
        other = loading.load_model(model, runtime=own.runtime, options=options)
        out["masked"] = noise_floor(other.target, tokens)
    return out


def _fidelity(loaded: Loaded, model: str) -> dict[str, Any] | None:
    """The precision in use against fp32, or None if there is nothing to compare."""
    from paceline import loading
    from paceline.bench.fidelity import fidelity

    capabilities = loaded.target.capabilities
    if capabilities.precision == "fp32":
        return None
    options = replace(loaded.options, precision="fp32")
    try:
        reference = loading.load_model(model, runtime=capabilities.runtime, options=options)
    except PacelineError:  # a model or device without fp32
        return None
    return fidelity(reference.target, loaded.target, loaded.tokenizer).as_dict()


def _print(report: Mapping[str, Any]) -> None:
    machine, cache = report["machine"], report["cache"]
    lines = []
    for package, version in report["versions"].items():
        extra = _PACKAGES.get(package)
        lines.append((package, version or f"missing: pip install 'paceline[{extra}]'"))
    memory = "" if machine["memory_gib"] is None else f", {machine['memory_gib']} GiB"
    lines += [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores{memory}, {machine['system']}"),
        ("cache", f"{cache['path']} ({cache['mib']} MiB)"),
        ("runtime auto", report["auto_runtime"]),
    ]
    if "model" in report:
        model = report["model"]
        exact = "bit-exact" if model["bit_exact"] else "exact up to near-ties"
        lines += [
            (
                "model",
                f"{model['name']} on {model['runtime']} {model['device']}, {model['precision']}, "
                f"layout {model['layout']} ({exact}), loaded in {model['load_seconds']:.1f} s",
            ),
            ("plain forward", f"{report['forward_ms']:.1f} ms"),
            ("c(n)", ", ".join(f"{n}: {c:.2f}" for n, c in report["c_n"].items())),
        ]
        for layout, floor in report["noise_floor"].items():
            for kind, value in floor.items():
                text = "0 (bit-exact)" if value == 0 else f"{value:.2g}"
                lines.append((f"noise, {layout} {kind}", f"{text}, largest logit difference"))
        if report["fidelity"]:
            f = report["fidelity"]
            lines.append(
                (
                    f"{model['precision']} against fp32",
                    f"KL {f['kl']:.4f} nats per token, same likeliest token at "
                    f"{f['top1_agreement']:.1%}, perplexity {f['perplexity']:.3f} against "
                    f"{f['reference_perplexity']:.3f} ({f['tokens']} tokens)",
                )
            )
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        typer.echo(f"{label:<{width}}  {text}")
