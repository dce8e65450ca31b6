"""Loading: resolve model, runtime, drafter, verifier and controller by name into an engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from paceline.core.cache import read_text
from paceline.core.expressions import parse
from paceline.core.target import BlockTarget, RuntimeOptions, TakesMaskRows
from paceline.core.types import Denoising, SamplingParams
from paceline.denoising.decoder import DenoisingDecoder
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, ModelError, RuntimeUnavailable
from paceline.models.denoiser import denoiser_options
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import FirstLayers, ModelSource, resolve
from paceline.networks.mask_rows import NETWORK, PARTS, MaskRows, load_mask_rows
from paceline.networks.weights import shipped_file
from paceline.registry import table as registry
from paceline.registry.assembly import SpeculationBuilder
from paceline.registry.loaded import Loaded
from paceline.registry.samplers import (
    DEFAULT_SAMPLERS,
    RegisteredParts,
    make_plan,
    make_sampler,
)
from paceline.registry.tuned_choice import Configuration
from paceline.verifiers.base import VerifierContext
from paceline.version import __version__

# Packages that runtimes need beyond those of paceline.
_PACKAGES = {"torch": ("torch",), "transformers": ("transformers", "torch")}

# Sampler that is none: plain decoding, and drafts.
AUTOREGRESSIVE = "autoregressive"


def installed(runtime: str) -> bool:
    return all(importlib.util.find_spec(name) for name in _PACKAGES.get(runtime, ()))


def choose_runtime(device: str | None, source: ModelSource) -> str:
    """Choose for `runtime="auto"`; RuntimeUnavailable if what the model needs is not installed."""
    try:
        source.config  # noqa: B018 (raises for families that are not written here)
        wanted = "cpu" if device in (None, "cpu") else "torch"
    except ModelError:
        if source.denoiser:  # that library has none
            raise
        wanted = "transformers"
    if installed(wanted):
        return wanted
    raise RuntimeUnavailable(
        f"no runtime for {source.name} is installed: pip install 'paceline[{wanted}]'"
    )


def load_model(
    model: str = DEFAULT_MODEL,
    *,
    runtime: str = "auto",
    options: RuntimeOptions | None = None,
    layers: int | None = None,
    denoiser: str | Mapping[str, Any] | None = None,
    drafts: bool = False,
    chat_template: str | None = None,
    fold_system: bool = False,
    progress: bool = True,
) -> Loaded:
    """Load a model on a runtime, without a drafter; arguments and errors as for `load`.

    `layers` loads only the first layers, as an early-exit draft model. One that `drafts` may have
    a shorter context than is asked for.
    """
    options = options or RuntimeOptions()
    if runtime != "auto":
        registry.find("runtime", runtime)
    if not isinstance(model, str):
        raise InvalidOption(f"model must be a name or a path as text, not {model!r}")
    template = None if chat_template is None else _template(chat_template)
    facts = denoiser_options(denoiser)
    rows = facts.pop("rows", None)
    if rows is not None and facts:
        raise InvalidOption(f"denoiser rows say all that {', '.join(facts)} would: leave that out")
    source = resolve(model, progress=progress, denoiser=facts)
    if layers is not None:
        source = FirstLayers(source, layers)
    name = choose_runtime(options.device, source) if runtime == "auto" else runtime
    if not installed(name):
        raise RuntimeUnavailable(
            f"runtime '{name}' is not installed: pip install 'paceline[{name}]'"
        )
    for each in ("kv_precision", "kv_tokens", "prefix_tokens"):
        value = getattr(options, each)
        if value and name != "cpu" and (name, each) != ("reference", "kv_precision"):
            raise InvalidOption(
                f"runtime '{name}' keeps keys and values as the model computes them, sequence by "
                f"sequence: leave out {each} {value}, or use runtime cpu"
            )
    if options.threads is not None and name == "reference":
        raise InvalidOption(
            f"runtime 'reference' counts in NumPy: leave out threads {options.threads}, or use cpu"
        )
    if source.denoiser and name == "transformers":
        raise InvalidOption(f"runtime 'transformers' fills no canvas of {model}: use cpu or torch")
    if options.max_context is not None and name != "transformers" and not drafts:
        reads = source.config.max_context
        if options.max_context > reads:
            raise InvalidOption(
                f"max_context is {options.max_context}, but {source.name} reads {reads} tokens at "
                "most: give no more, or a model file with a longer context"
            )
    if layers is not None and name == "transformers":  # it reads the model's own files
        raise InvalidOption("runtime 'transformers' loads whole models: use another for an exit")
    target = registry.find("runtime", name).load().load(source, options)
    if rows is not None:
        if not isinstance(target, TakesMaskRows):
            raise RuntimeUnavailable(f"runtime '{name}' has no mask rows: use cpu")
        target.add_mask_rows(_mask_rows(rows, source))
    tokenizer = source.tokenizer()
    tokenizer.fold_system = fold_system
    if template is not None:
        tokenizer.chat_template, tokenizer.named_templates = template, {}
    return Loaded(source, tokenizer, target, options)


def _template(given: str) -> str:
    # A file, or the text itself.
    if "{{" in given or "{%" in given:
        return given
    said = f"chat template {given} cannot be read"
    return read_text(Path(given).expanduser(), said, "give a Jinja file, or the text itself")


def _mask_rows(named: str, source: ModelSource) -> MaskRows:
    path = shipped_file(NETWORK, source.fingerprint) if named == "auto" else Path(named)
    if path is None:
        raise InvalidOption(
            f"no mask rows ship for {source.name}: train some with `paceline train mask-rows`, and "
            "give --denoiser rows=FILE"
        )
    weights = source.weights()
    names = [f"layers.{i}.{part}" for i in range(source.config.layers) for part in PARTS]
    shapes = {name: weights.stored(name).shape for name in names}
    return load_mask_rows(path.expanduser(), source.fingerprint, shapes)


def load_draft(
    loaded: Loaded,
    model: str,
    *,
    precision: str | None = None,
    layers: int | None = None,
    translated: bool = False,
    progress: bool = True,
) -> Loaded:
    """Load a draft model for `loaded`, likewise.

    InvalidOption if the vocabularies differ, unless its drafts are `translated`.
    """
    small = load_model(
        model,
        runtime=loaded.target.capabilities.runtime,
        options=replace(loaded.options, precision=precision),
        drafts=True,
        layers=layers,
        progress=progress,
    )
    if not translated and not small.tokenizer.agrees(loaded.tokenizer):
        raise InvalidOption(
            f"draft model {model} and target {loaded.source.name} have different "
            "vocabularies: use drafter 'draft-model', or a draft model of the target's family"
        )
    return small


def make_engine(
    loaded: Loaded,
    *,
    drafter: str = "auto",
    verifier: str = "auto",
    controller: str = "auto",
    nodes: int | None = None,
    depth: int | None = None,
    draft_model: str | None = None,
    max_batch: int = 8,
    max_waiting: int | None = None,
    step_tokens: int | None = None,
    pool: int | None = None,
    sampler: str | None = None,
    block: int | None = None,
    canvas_cache: str | None = None,
    generation_config: bool = True,
    progress: bool = True,
    spare_draft: bool = False,
) -> Engine:
    """Build an engine over a loaded model, which engines may share. Arguments as for `load`.

    `spare_draft` lets a drafter leave `draft_model` unused; `Engine.config` says which do.
    """
    canvas = Denoising(sampler, block, canvas_cache)
    defaults = getattr(loaded.source, "sampling", {}) if generation_config else {}
    # A drafter that is named is for decoding from left to right.
    if sampler is None and drafter != "auto" and loaded.target.capabilities.denoises:
        sampler = AUTOREGRESSIVE
    if loaded.target.capabilities.denoises and sampler != AUTOREGRESSIVE:
        if {drafter, verifier, controller} != {"auto"} or (
            {nodes, depth, draft_model, step_tokens, pool} != {None}
        ):
            raise InvalidOption(
                "drafter, verifier, controller, nodes, depth, draft_model, step_tokens and pool "
                f"are for autoregressive decoding, and {loaded.source.name} fills a canvas: leave "
                f"them out, or use sampler '{AUTOREGRESSIVE}'"
            )
        limits = {"max_batch": max_batch, "max_waiting": max_waiting, "defaults": defaults}
        return _canvas_engine(loaded, canvas, limits)
    _check_autoregressive(loaded, canvas)
    verifier = "coupled" if verifier == "auto" else verifier
    named = parse(verifier, "verifier")
    rule = (
        registry.find("verifier", named.name)
        .load()
        .create(
            VerifierContext(
                loaded.target.capabilities,
                loaded.source.fingerprint,
                loaded.tokenizer.encode,
                named.options,
            )
        )
    )
    assembly = SpeculationBuilder(
        loaded,
        rule,
        verifier,
        draft_model,
        lambda model, translated: load_draft(
            loaded, model, translated=translated, progress=progress
        ),
    )
    drafting = assembly.make(Configuration(drafter, controller, nodes, depth))
    if assembly.draft_unused and not spare_draft:
        raise InvalidOption(
            f"drafter '{drafting.settings['drafter']}' uses no draft model: use drafter "
            f"'draft-model' or leave out {draft_model}"
        )
    decoder = AutoregressiveDecoder(
        loaded.target,
        drafting.drafter,
        rule,
        drafting.controller,
        StopRules(loaded.tokenizer.eos_token_ids, loaded.target.capabilities.max_context),
    )
    capabilities = loaded.target.capabilities
    if pool is not None and capabilities.runtime != "transformers":
        raise InvalidOption(
            f"pool is for runtime transformers, since {capabilities.runtime} pads nothing: leave it"
        )
    config = {
        **_described(loaded),
        **drafting.settings,
        "verifier": verifier,
        "lossless": rule.lossless,
        "draft_model": None if assembly.draft_unused else assembly.draft_model,
    }
    return Engine(
        decoder,
        loaded.tokenizer,
        max_batch=max_batch,
        max_waiting=max_waiting,
        step_tokens=step_tokens,
        pool=pool,
        config=config,
        defaults=defaults,
    )


def _described(loaded: Loaded) -> dict[str, Any]:
    capabilities = loaded.target.capabilities
    return {
        "model": loaded.source.name,
        "runtime": capabilities.runtime,
        "device": capabilities.device,
        "precision": capabilities.precision,
        "kv_precision": capabilities.kv_precision,
        "version": __version__,
    }


def _check_autoregressive(loaded: Loaded, canvas: Denoising) -> None:
    facts = loaded.target.capabilities.denoises
    if facts is not None and not facts.autoregressive:
        raise InvalidOption(
            f"{loaded.source.name} cannot decode from left to right: use another sampler, such as "
            f"{DEFAULT_SAMPLERS[facts.attention]}"
        )
    asked = replace(canvas, sampler=None) if canvas.sampler == AUTOREGRESSIVE else canvas
    if asked != Denoising():
        raise InvalidOption(
            f"sampler, block and canvas_cache are for models that fill a canvas, and "
            f"{loaded.source.name} does not: leave them out"
        )


def _canvas_engine(loaded: Loaded, canvas: Denoising, limits: dict[str, Any]) -> Engine:
    target = cast(BlockTarget, loaded.target)
    capabilities = target.capabilities
    facts = capabilities.denoises
    assert facts is not None
    stops = StopRules((*loaded.tokenizer.eos_token_ids, *facts.ends), capabilities.max_context)
    decoder = DenoisingDecoder(target, facts, stops, RegisteredParts(), canvas)
    decoder.check(SamplingParams(max_new_tokens=1), None)  # requests come with their own size
    config = {
        **_described(loaded),
        "sampler": canvas.sampler or DEFAULT_SAMPLERS[facts.attention],
        "block": canvas.block,
        "canvas_cache": canvas.cache,
    }
    return Engine(decoder, loaded.tokenizer, config=config, **limits)


def check_canvas(sampler: str | None, canvas_cache: str | None) -> None:
    """Find mistakes before anything is loaded; InvalidOption names them."""
    if sampler is not None and sampler != AUTOREGRESSIVE:
        make_sampler(sampler)
    if canvas_cache is not None:
        make_plan(canvas_cache)


def load(
    model: str = DEFAULT_MODEL,
    *,
    runtime: str = "auto",
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    max_context: int | None = None,
    kv_tokens: int | None = None,
    prefix_tokens: int | None = None,
    kv_precision: str | None = None,
    drafter: str = "auto",
    verifier: str = "auto",
    controller: str = "auto",
    nodes: int | None = None,
    depth: int | None = None,
    draft_model: str | None = None,
    max_batch: int = 8,
    max_waiting: int | None = None,
    step_tokens: int | None = None,
    pool: int | None = None,
    sampler: str | None = None,
    block: int | None = None,
    canvas_cache: str | None = None,
    denoiser: str | Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    fold_system: bool = False,
    generation_config: bool = True,
    progress: bool = True,
) -> Engine:
    """Load a model and return an engine for it.

    Args:
        model: "smollm2-135m" (downloaded at first use), a GGUF file, a Hugging Face directory, or
            a hub id, with a quantisation if it holds GGUF files: "owner/name:Q4_K_M".
        runtime: "cpu", "torch", "transformers", "reference" (NumPy: slow), or "auto".
        device: "cpu" or "cuda"; default by runtime.
        precision: on runtime cpu "file" (weights as stored), "int8", "int4" or "fp32"; else "fp32"
            or "bf16".
        max_context: longest sequence in tokens.
        kv_tokens: size of the key-value cache in tokens, over all requests.
        prefix_tokens: part of it that the prefix cache retains of ended requests even where the
            machine is short of memory; 0 disables it.
        kv_precision: kv dtype on runtime cpu: "fp16" or "fp32".
        drafter: see `paceline methods`; "none" is autoregressive decoding; "auto" is the choice
            of `paceline tune`, else a default. Sizes and controller given here override it.
        verifier: see `paceline methods`; "auto" is "coupled". "NAME:key=value" sets options.
        controller: "auto" chooses draft sizes by measured costs, or fixes `nodes` (draft size in
            tokens) and `depth` where they are given.
        draft_model: model for drafter "draft-model", on the same runtime; of any vocabulary.
        max_waiting: most queued requests.
        step_tokens: most rows of a forward that combines prefill and decoding.
        pool: on runtime transformers, the fewest sequences of equal length that take a step
            without the others, so that nothing is padded.
        sampler: for models that fill a canvas, see `paceline methods`; "autoregressive" decodes
            those that can from left to right, with drafts.
        block: places that are filled before those right of them.
        canvas_cache: which keys of a canvas are kept, see `paceline methods`.
        denoiser: facts of a model that fills a canvas, where its files do not say them:
            "mask=126336,attention=full,block=32,shift=false", or a mapping.
        chat_template: in place of the model's: a Jinja file, or the text itself.
        fold_system: put a system message before the first user turn, if the template takes none.
        generation_config: keep the sampling that the model's files ask for in `Engine.defaults`.

    Raises:
        PacelineError: one line that names the fault and the fix.
    """
    options = RuntimeOptions(
        device, precision, threads, max_context, kv_tokens, prefix_tokens, kv_precision
    )
    check_canvas(sampler, canvas_cache)
    loaded = load_model(
        model,
        runtime=runtime,
        options=options,
        denoiser=denoiser,
        chat_template=chat_template,
        fold_system=fold_system,
        progress=progress,
    )
    return make_engine(
        loaded,
        drafter=drafter,
        verifier=verifier,
        controller=controller,
        nodes=nodes,
        depth=depth,
        draft_model=draft_model,
        max_batch=max_batch,
        max_waiting=max_waiting,
        step_tokens=step_tokens,
        pool=pool,
        sampler=sampler,
        block=block,
        canvas_cache=canvas_cache,
        generation_config=generation_config,
        progress=progress,
    )
