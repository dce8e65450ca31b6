"""What `paceline doctor` prints for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.cli import profile

PACKAGES = {
    "numpy": None,
    "openvino": "openvino",
    "torch": "torch",
    "transformers": "transformers",
}
"""Packages that matter here, with the extra that brings each."""


OPERATIONS = {
    "paths": "our own, compiled for this processor",
    "plugin": "OpenVINO's: slower, see docs/architecture.md",
}
"""Whose operations run, by what attends according to a target's capabilities."""


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report, a line for each finding."""
    machine, folder = report["machine"], report["cache"]
    found = []
    for package, version in report["versions"].items():
        extra = PACKAGES.get(package)
        found.append((package, version or f"missing: pip install 'paceline[{extra}]'"))
    memory = "" if machine["memory_gib"] is None else f", {machine['memory_gib']} GiB"
    found += [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores{memory}, {machine['system']}"),
        ("cache", f"{folder['path']} ({folder['mib']} MiB)"),
        ("runtime auto", report["auto_runtime"]),
    ]
    if "model" in report:
        model = report["model"]
        exact = "bit-exact" if model["bit_exact"] else "exact up to near-ties"
        found += [
            (
                "model",
                f"{model['name']} on {model['runtime']} {model['device']}, {model['precision']}, "
                f"layout {model['layout']} ({exact}), loaded in {model['load_seconds']:.1f} s",
            ),
        ]
        if model["attention"]:
            found.append(("operations", OPERATIONS[model["attention"]]))
        if model["kv_precision"]:
            lossy = " (lossy)" if model["kv_lossy"] else ""
            size = model["kv_bytes_per_token"] / 1024
            found.append(
                ("key-value cache", f"{model['kv_precision']}{lossy}, {size:.1f} KiB per token")
            )
    if "c_n" in report:
        found += [
            ("plain forward", f"{report['forward_ms']:.1f} ms"),
            ("c(n)", ", ".join(f"{n}: {c:.2f}" for n, c in report["c_n"].items())),
        ]
        for layout, floor in report["noise_floor"].items():
            for kind, value in floor.items():
                text = "0 (bit-exact)" if value == 0 else f"{value:.2g}"
                found.append((f"noise, {layout} {kind}", f"{text}, largest logit difference"))
        if report["fidelity"]:
            f = report["fidelity"]
            cache = model["kv_precision"]
            cache = "" if cache in (None, "fp32") else f", {cache} cache,"
            found.append(
                (
                    f"{model['precision']}{cache} against fp32",
                    f"KL {f['kl']:.4f} nats per token, same likeliest token at "
                    f"{f['top1_agreement']:.1%}, perplexity {f['perplexity']:.3f} against "
                    f"{f['reference_perplexity']:.3f} ({f['tokens']} tokens)",
                )
            )
    width = max(len(label) for label, _ in found)
    return [
        *(f"{label:<{width}}  {text}" for label, text in found),
        *profile.lines(report.get("profile", {})),
    ]
