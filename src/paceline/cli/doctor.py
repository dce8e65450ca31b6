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
from paceline.cli.output import print_json, remark
from paceline.errors import InvalidOption, ModelError, PacelineError
from paceline.registry.options import Options
from paceline.version import __version__

PACKAGES = ("numpy", "torch", "transformers")

# Capabilities in the report.
_SHOWN = ("runtime", "device", "precision", "bit_exact", "kv_precision", "kv_bytes_per_token")

if TYPE_CHECKING:
    from paceline.drafters.resources import Loaded


def doctor(
    *,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE, "kv_precision", "mmproj")],
    quick: Annotated[bool, "Leave the model out."] = False,
    profile: Annotated[bool, "Take a plain and a drafted step apart instead."] = False,
    fingerprint: Annotated[
        bool,
        "Print hashes of logits instead, equal on every processor: of built-in tiny "
        "models and, without --quick, of the model.",
    ] = False,
    rows: Annotated[int, "Rows of the drafted step of --profile."] = 8,
    drafter: Annotated[str, "Who drafts in --profile."] = "suffix-automaton",
    language: Annotated[
        Path | None, "Say instead what a text costs in tokens and forwards, with drafts."
    ] = None,
    reference: Annotated[
        Path | None, "With --language: the same text in the language to compare with."
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Report on this machine: packages, costs of forwards, exactness and fidelity.

    With --profile: where a plain and a drafted step spend their time, part by part. With
    --language: what a language costs beside another, in tokens and in forwards. With --mmproj: if
    what reads pictures fits the model, and what it costs.
    """
    asked.check(drafter)
    if rows < 2:
        raise InvalidOption(f"--rows must be 2 or more, a root and a draft, not {rows}")
    if quick and profile:
        raise InvalidOption("--profile needs the model: leave out --quick")
    if language is not None and (quick or profile or fingerprint):
        raise InvalidOption("--language needs the model, and stands without other reports")
    if reference is not None and language is None:
        raise InvalidOption("--reference is of --language: give that file as well")
    if asked.mmproj is not None and (quick or profile or fingerprint or language is not None):
        raise InvalidOption("--mmproj needs the model, and stands without other reports")
    if fingerprint and (profile or asked.runtime not in ("auto", "cpu")):
        raise InvalidOption("--fingerprint is of runtime cpu, and stands without --profile")

    from paceline.core.cache import cache_dir
    from paceline.lab.measure.machine import machine

    directory = cache_dir()
    report: dict[str, Any] = {
        "versions": _versions(),
        "machine": machine(),
        "cache": {"path": str(directory), "mib": _size(directory)},
        "native": _native(),
    }
    report["auto_runtime"] = _auto(asked.device)
    problem: PacelineError | None = None
    if fingerprint:
        report |= {"fingerprint": _fingerprint(None if quick else asked)}
    elif not quick:
        if not as_json:
            remark("loading and measuring; this takes a minute or two")
        try:
            if asked.mmproj is not None:
                report |= {"pictures": _pictures(asked, asked.mmproj)}
            elif language is not None:
                report |= _language(asked, language, reference)
            elif profile:
                report |= _profile(asked, drafter, rows)
            else:
                report |= _measure(asked)
        except PacelineError as error:  # what is known so far may explain it
            problem = error
    if as_json:
        print_json(report)
    else:
        for line in _lines(report):
            typer.echo(line)
    if problem is not None:
        raise problem


def _measure(asked: Options) -> dict[str, Any]:
    from paceline.lab.measure.doctor import noise_floor
    from paceline.lab.measure.prompts import NOISE_TEXT
    from paceline.registry import loading

    begin = perf_counter()
    loaded = loading.load_model(asked)
    return {
        "model": {**_model(loaded), "load_seconds": perf_counter() - begin},
        "c_n": loaded.measured_costs.curve(),
        "forward_ms": round(1000 * loaded.measured_costs.time(1), 2),
        "noise_floor": noise_floor(loaded.target, loaded.tokenizer.prompt(NOISE_TEXT, raw=True)),
        "fidelity": _fidelity(loaded, asked.model),
    }


def _profile(asked: Options, drafter: str, rows: int) -> dict[str, Any]:
    from paceline.lab.measure.doctor import profile, repetitive
    from paceline.registry import loading

    begin = perf_counter()
    loaded = loading.load_model(asked)
    seconds = perf_counter() - begin
    prompt = repetitive(loaded.tokenizer, loaded.target.capabilities.max_context)
    plain = loading.make_engine(loaded, drafter="none", max_batch=1)
    drafted = loading.make_engine(
        loaded, drafter=drafter, nodes=rows - 1, depth=rows - 1, max_batch=1
    )
    return {
        "model": {**_model(loaded), "load_seconds": seconds},
        "profile": {
            "plain": profile(plain, prompt, 1).as_dict(),
            "drafted": profile(drafted, prompt, rows).as_dict(),
        },
    }


def _language(asked: Options, path: Path, reference: Path | None) -> dict[str, Any]:
    from paceline.lab.measure import premium
    from paceline.registry import loading

    text = premium.read_language(path)
    beside = None if reference is None else premium.read_language(reference)
    begin = perf_counter()
    loaded = loading.load_model(asked)
    seconds = perf_counter() - begin
    engine = loading.make_engine(loaded, asked, max_batch=1)
    return {
        "model": {**_model(loaded), "load_seconds": seconds},
        "language": {"file": str(path)} | premium.report(engine, text, beside),
    }


def _pictures(asked: Options, named: str) -> dict[str, Any]:
    # Of the model only what tells whether the two fit is read.
    import numpy as np

    from paceline.core.processor import usable_threads
    from paceline.models.pictures import Picture
    from paceline.models.shown import PictureWords
    from paceline.models.source import without_adapters
    from paceline.models.vision import find_mmproj, mmproj
    from paceline.registry.loading import find_source
    from paceline.runtimes.cpu.tower import CpuTower

    source = find_source(asked)
    source.config.refuse_added_embeddings()
    model = without_adapters(source).fingerprint
    path = find_mmproj(named)
    vision, weights = mmproj(path, source.config.hidden_size, model)
    PictureWords.of(vision, source.tokenizer().special_ids)
    precision, tower = asked.precision or "file", vision.tower
    reads = CpuTower(vision, weights, precision, usable_threads(asked.threads))
    patches, seconds = Picture(np.full((64, 64, 3), 128, np.uint8)).patches(vision), []
    for _ in range(3):
        begin = perf_counter()
        *_, rows = reads.reading(patches)
        seconds.append(perf_counter() - begin)
    if rows is None or not np.isfinite(rows).all():
        raise ModelError(f"{path} makes rows that are no finite numbers: download it again")
    return {
        "file": str(path),
        "model": source.name,
        "tower": tower.kind,
        "layers": tower.layers,
        "width": tower.width,
        "projector": vision.projector,
        "pixels": tower.image,
        "rows": vision.rows,
        "precision": precision,
        "picture_ms": round(1000 * min(seconds), 1),
    }


def _native() -> dict[str, Any]:
    from paceline.core import processor
    from paceline.native import build, library

    able, found = build.levels(processor.flags()), library.found()
    if found is None:
        return {"levels": able, "level": None, "library": None, "compiler": None}
    level, path = found
    compiler = build.compiler_of(path)
    return {"levels": able, "level": level, "library": str(path), "compiler": compiler}


def _fingerprint(asked: Options | None) -> dict[str, Any]:
    from paceline.lab.measure import fingerprint
    from paceline.models.source import resolve
    from paceline.runtimes.cpu.target import CpuTarget

    found = fingerprint.fingerprints()
    out: dict[str, Any] = {"built_in": fingerprint.summary(found), "cases": found}
    if asked is not None:
        source = resolve(asked.model)
        target = CpuTarget.load(source, replace(asked, kv_tokens=1024, max_context=None))
        kept = target.capabilities
        out["model"] = {
            "name": source.name,
            "precision": kept.precision,
            "kv_precision": kept.kv_precision,
            "sha256": fingerprint.fingerprint(target),
        }
    return out


def _versions() -> dict[str, str | None]:
    out: dict[str, str | None] = {"python": platform.python_version(), "paceline": __version__}
    for package in PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = None
    return out


def _size(directory: Path) -> float:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # a file of another process that is gone by now
            continue
    return round(total / 2**20, 1)


def _auto(device: str | None) -> str:
    from paceline.registry.loading import installed

    wanted = "cpu" if device in (None, "cpu") else "torch"
    return wanted if installed(wanted) else f"none installed: pip install 'paceline[{wanted}]'"


def _model(loaded: Loaded) -> dict[str, Any]:
    capabilities = loaded.target.capabilities
    return {"name": loaded.source.name} | {key: getattr(capabilities, key) for key in _SHOWN}


def _fidelity(loaded: Loaded, model: str) -> dict[str, Any] | None:
    from paceline.lab.measure.doctor import fidelity_to_fp32

    try:
        return fidelity_to_fp32(loaded, model)
    except PacelineError:  # a model or device without fp32
        return None


def _lines(report: Mapping[str, Any]) -> list[str]:
    """Format the report of `paceline doctor`, a line for each finding."""
    machine, folder = report["machine"], report["cache"]
    found = []
    for package, version in report["versions"].items():
        found.append((package, version or f"missing: pip install 'paceline[{package}]'"))
    memory = "" if machine["memory_gib"] is None else f", {machine['memory_gib']} GiB"
    found += [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores{memory}, {machine['system']}"),
        ("cache", f"{folder['path']} ({folder['mib']} MiB)"),
        ("runtime auto", report["auto_runtime"]),
    ]
    native = report["native"]
    able = ", ".join(native["levels"])
    found += [("instruction set", f"{native['level'] or 'no library'} (this processor: {able})")]
    if native["library"]:
        found.append(("native library", f"{native['library']}, by {native['compiler']}"))
    if "fingerprint" in report:
        prints = report["fingerprint"]
        found.append(("fingerprint, built in", prints["built_in"]))
        if "model" in prints:
            of = prints["model"]
            name = f"{of['name']}, {of['precision']}, {of['kv_precision']} cache"
            found.append(("fingerprint, model", f"{of['sha256']} ({name})"))
    if "model" in report:
        model = report["model"]
        exact = "bit-exact" if model["bit_exact"] else "exact up to near-ties"
        found += [
            (
                "model",
                f"{model['name']} on {model['runtime']} {model['device']}, {model['precision']}, "
                f"{exact}, loaded in {model['load_seconds']:.1f} s",
            ),
        ]
        if model["kv_precision"]:
            size = model["kv_bytes_per_token"] / 1024
            found.append(("key-value cache", f"{model['kv_precision']}, {size:.1f} KiB per token"))
    if "pictures" in report:
        of = report["pictures"]
        shape = f"{of['tower']}, {of['layers']} layers of width {of['width']}, {of['precision']}"
        found += [
            ("pictures", f"{of['file']} fits {of['model']}"),
            ("tower", f"{shape}, projector {of['projector']}"),
            (
                "a picture",
                f"{of['pixels']} pixels a side, {of['rows']} rows, {of['picture_ms']} ms",
            ),
        ]
    if "language" in report:
        found += _language_lines(report["language"])
    if "c_n" in report:
        found += [
            ("plain forward", f"{report['forward_ms']:.1f} ms"),
            ("c(n)", ", ".join(f"{n}: {c:.2f}" for n, c in report["c_n"].items())),
        ]
        for kind, value in report["noise_floor"].items():
            text = "0 (bit-exact)" if value == 0 else f"{value:.2g}"
            found.append((f"noise, {kind}", f"{text}, largest logit difference"))
        if report["fidelity"]:
            from paceline.lab.measure.report import fidelity_text

            figures, cache = report["fidelity"], model["kv_precision"]
            cache = "" if cache in (None, "fp32") else f", {cache} cache,"
            text = f"{fidelity_text(figures)} ({figures['tokens']} tokens)"
            found.append((f"{model['precision']}{cache} against fp32", text))
    width = max(len(label) for label, _ in found)
    return [
        *(f"{label:<{width}}  {text}" for label, text in found),
        *_profile_lines(report.get("profile", {})),
    ]


def _language_lines(of: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format `premium.report`."""
    each = of["tokens_per_character"]
    found = [("text", f"{of['characters']} characters, {of['tokens']} tokens, {each:.2f} each")]
    if "premium" in of:
        found.append(("premium", f"{of['premium']:.2f} times the tokens of the reference"))
    for name, value in of["tokens_per_forward"].items():
        text = f"{value:.2f} tokens/forward"
        if "passes" in of:
            text += f", {of['passes'][name]:.2f} times the reference's forwards without drafts"
        found.append((f"drafted, {name}", text))
    return found


def _profile_lines(profiles: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format `StepProfile.as_dict` of several kinds of steps, by name."""
    out: list[str] = []
    for name, each in profiles.items():
        rows = f"{each['rows']} row{'s' * (each['rows'] > 1)}"
        out += [
            "",
            f"{name} step: {each['step_ms']:.2f} ms ({rows}, context {each['context']}, "
            f"faster half of {2 * each['steps']} steps)",
        ]
        width = max(map(len, each["parts"]))
        for part, figures in each["parts"].items():
            out.append(f"  {part:<{width}}  {figures['ms']:8.3f} ms  {figures['share']:6.1%}")
        total = each["closure"] * each["step_ms"]
        out.append(f"  {'sum of the parts':<{width}}  {total:8.3f} ms  {each['closure']:6.1%}")
        if each["counting_slowdown"] is not None:
            out.append(
                f"  counters changed the inference by {each['counting_slowdown']:+.1%}, and its "
                f"nodes account for {each['covered_by_nodes']:.1%} of it; their times are scaled "
                "to the inference without counters"
            )
        else:
            out.append("  this runtime does not count the time of its nodes")
    steps = [each["step_ms"] for each in profiles.values()]
    if len(steps) == 2:
        out += ["", f"a drafted step costs {steps[1] / steps[0]:.2f} plain ones"]
    return out
