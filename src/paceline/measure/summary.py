"""What belongs around the table of a bench: conditions, facts, warnings, the Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.measure import report
from paceline.measure.run import Record

_UNSHOWN = ("cpu", "cores", "drafters", "prompts_sha256", "fingerprint")
"""Settings that are shown elsewhere or not at all."""


def settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a reader should see."""
    return {
        key: value
        for key, value in results["settings"].items()
        if value not in (None, False) and key not in _UNSHOWN
    }


def place(results: Mapping[str, Any]) -> str:
    """The machine, in words."""
    return f"{results['machine']['cpu']}, {results['machine']['cores']} cores"


def facts(results: Mapping[str, Any]) -> list[str]:
    """Lines that belong under every table."""
    costs = ", ".join(f"c({n}) = {c:.2f}" for n, c in results["c_n"].items())
    noise = ", ".join(f"{kind} {value:.2g}" for kind, value in results["noise_floor"].items())
    lines = [f"cost of a forward: {costs}", f"largest logit difference to plain steps: {noise}"]
    if results["fidelity"]:
        figures = results["fidelity"]
        lines.append(
            f"against fp32: KL {figures['kl']:.4f} nats per token, same likeliest token at "
            f"{figures['top1_agreement']:.1%}, perplexity {figures['perplexity']:.3f} against "
            f"{figures['reference_perplexity']:.3f}"
        )
    return lines


def resumption(results: Mapping[str, Any]) -> list[str]:
    """What an interruption cost the drafters, if anything."""
    places = ", ".join(map(str, results["resumed_after"]))
    if not places or results["settings"]["cold"]:
        return []
    return [f"resumed after {places} prompts, where drafters that learn began anew"]


def cache(results: Mapping[str, Any]) -> list[str]:
    """What a lossy key-value cache means for the figures."""
    settings = results["settings"]
    if not settings.get("kv_lossy"):
        return []
    return [
        f"key-value cache {settings['kv_precision']}: lossy, all texts differ from those of the "
        "model with an exact cache, plain ones too"
    ]


def loops(records: Sequence[Record]) -> list[str]:
    """How many texts went in circles and were ended there."""
    plain = [record.runs[report.BASELINE] for record in records]
    count = sum(run.loops for run in plain)
    if not count:
        return []
    texts = sum(len(run.token_ids) for run in plain)
    return [f"{count} of {texts} texts of {report.BASELINE} repeated themselves and were ended"]


def markdown(results: Mapping[str, Any]) -> str:
    """results.md."""
    conditions = ", ".join(f"{key} {value}" for key, value in settings(results).items())
    lines = "\n".join(f"- {line}" for line in [*facts(results), *results["remarks"]])
    table = report.markdown(results["rows"])
    return f"# Bench\n\n{conditions}\n\n{place(results)}\n\n{table}\n{lines}\n"
