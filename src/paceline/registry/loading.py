"""Loading: resolve model, runtime, drafter, verifier and controller by name into an engine."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from paceline.core.cache import read_text
from paceline.core.pages import give_back
from paceline.core.processor import usable_threads
from paceline.core.target import Head, RuntimeOptions, TakesRows, Target
from paceline.core.types import CanvasParams, SamplingParams
from paceline.denoising.decoder import DenoisingDecoder
from paceline.drafters.resources import Loaded, Resources
from paceline.engine.engine import Engine
from paceline.engine.looking import Looking
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, ModelError, RuntimeUnavailable
from paceline.models.config import ELSEWHERE
from paceline.models.denoiser import denoiser_options
from paceline.models.gguf import GGUFFile
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.shown import PictureWords
from paceline.models.source import (
    AdaptedSource,
    DirectorySource,
    FirstLayers,
    ModelSource,
    resolve,
    without_adapters,
)
from paceline.models.vision import PictureReader, find_mmproj, mmproj, vision_of
from paceline.networks.mask_rows import NETWORK, PARTS, MaskRows, load_mask_rows
from paceline.networks.weights import shipped_file
from paceline.registry import table as registry
from paceline.registry.assembly import Assembly
from paceline.registry.options import AUTOREGRESSIVE, DEFAULTS, Options
from paceline.registry.samplers import DEFAULT_SAMPLERS, make_parts
from paceline.registry.tuned_choice import Configuration
from paceline.runtimes.cpu.tower import CpuTower
from paceline.runtimes.reference.tower import ReferenceTower
from paceline.verifiers.base import VerifierContext
from paceline.version import __version__
from paceline.weights import or_install

_LOG = logging.getLogger(__name__)

# Packages that runtimes need beyond those of paceline.
_PACKAGES = {"torch": ("torch",), "transformers": ("transformers", "torch")}

# What is said of runtimes without one of `Runtime.changes`.
_UNCHANGED = {
    "mask_rows": "has no mask rows: use cpu",
    "head": "cannot leave out tokens of a model: use cpu or torch",
}

# Capabilities that `Engine.config` tells.
_DESCRIBED = ("runtime", "device", "precision", "kv_precision")


def installed(runtime: str) -> bool:
    return all(importlib.util.find_spec(name) for name in _PACKAGES.get(runtime, ()))


def choose_runtime(device: str | None, source: ModelSource) -> str:
    """Choose for `runtime="auto"`; RuntimeUnavailable if what the model needs is not installed."""
    try:
        source.config  # noqa: B018 (raises for families that are not written here)
        wanted = "cpu" if device in (None, "cpu") else "torch"
    except ModelError as error:
        # That library has no denoisers, and what is broken it would not read otherwise.
        if source.denoiser or ELSEWHERE not in str(error):
            raise
        wanted = "transformers"
    if installed(wanted):
        return wanted
    raise RuntimeUnavailable(
        f"no runtime for {source.name} is installed: pip install 'paceline[{wanted}]'"
    )


def load_model(
    asked: Options | RuntimeOptions | str = DEFAULTS,
    *,
    layers: int | None = None,
    drafts: bool = False,
    head: Head | None = None,
    progress: bool = True,
    **options: Any,
) -> Loaded:
    """Load a model on a runtime, without a drafter; options and errors as for `load`.

    Args:
        asked: the model, or options of which others take the place of some.
        layers: load the first layers alone, as an early-exit draft model.
        drafts: it may have a shorter context than is asked for.
        head: which tokens it gives logits of; see `paceline.core.target.Runtime.changes`.
        progress: show what is downloaded.
    """
    asked = Options.of(asked, **options)
    if asked.runtime != "auto":
        registry.find("runtime", asked.runtime)
    template = None if asked.chat_template is None else _template(asked.chat_template)
    facts = denoiser_options(asked.denoiser)
    rows = facts.pop("rows", None)
    if rows is not None and facts:
        raise InvalidOption(f"denoiser rows say all that {', '.join(facts)} would: leave that out")
    source = find_source(asked, progress=progress)
    if layers is not None:
        source = FirstLayers(source, layers)
    name = _runtime_for(asked, source, whole=layers is None, drafts=drafts)
    runtime = registry.find("runtime", name).load()
    changes = {each: v for each, v in {"mask_rows": rows, "head": head}.items() if v is not None}
    for each in changes.keys() - getattr(runtime, "changes", ()):
        raise RuntimeUnavailable(f"runtime '{name}' {_UNCHANGED[each]}")
    if rows is not None:
        changes["mask_rows"] = _mask_rows(rows, source)
    target = runtime.load(source, asked.of_runtime, **changes)
    tokenizer = source.tokenizer()
    tokenizer.fold_system = asked.fold_system
    if template is not None:
        tokenizer.chat_template, tokenizer.named_templates = template, {}
    reader = None if drafts or layers is not None else _reader(asked, source, target)
    if reader is not None:
        tokenizer.pictures = PictureWords.of(reader.vision, tokenizer.special_ids)
    return Loaded(source, tokenizer, target, asked.of_runtime, reader)


def _reader(asked: Options, source: ModelSource, target: Target) -> PictureReader | None:
    # What reads pictures: an mmproj file, or a side of the directory, which is loaded at the first.
    if asked.mmproj is not None:
        source.config.refuse_added_embeddings()
        path, precision = find_mmproj(asked.mmproj), asked.precision or "file"
        found = mmproj(path, source.config.hidden_size, without_adapters(source).fingerprint)
        of = (DirectorySource if path.is_dir() else GGUFFile)(path).fingerprint
    else:
        if not isinstance(target, TakesRows) or not source.path.is_dir():
            return None
        try:
            seen = vision_of(source.path, source.config.hidden_size)
        except ModelError as error:
            _LOG.warning("pictures are not read: %s", error)
            return None
        if seen is None:
            return None
        found, precision, of = seen, asked.precision or source.precision, source.fingerprint
    vision, weights = found

    @cache
    def tower() -> CpuTower | ReferenceTower:
        if target.capabilities.runtime == "reference":
            return ReferenceTower(vision, weights, precision)
        return CpuTower(vision, weights, precision, usable_threads(asked.threads))

    if asked.mmproj is not None:
        tower()
    return PictureReader(
        vision,
        repr((vision, of, precision)).encode(),
        lambda patches: tower().reading(patches),
    )


def find_source(asked: Options, *, progress: bool = True) -> ModelSource:
    """Find the model that options name, with its adapters, and load none of it; errors likewise."""
    facts = denoiser_options(asked.denoiser)
    facts.pop("rows", None)
    source = resolve(asked.model, progress=progress, denoiser=facts)
    if not asked.adapter:
        return source
    return AdaptedSource(
        source, [asked.adapter] if isinstance(asked.adapter, str) else asked.adapter
    )


def _runtime_for(asked: Options, source: ModelSource, *, whole: bool, drafts: bool) -> str:
    # The runtime by name, once it is known that it does what is asked.
    name = choose_runtime(asked.device, source) if asked.runtime == "auto" else asked.runtime
    if not installed(name):
        raise RuntimeUnavailable(
            f"runtime '{name}' is not installed: pip install 'paceline[{name}]'"
        )
    for each in ("kv_precision", "kv_tokens", "prefix_tokens"):
        value = getattr(asked, each)
        if value and name != "cpu" and (name, each) != ("reference", "kv_precision"):
            raise InvalidOption(
                f"runtime '{name}' keeps keys and values as the model computes them, sequence by "
                f"sequence: leave out {each} {value}, or use runtime cpu"
            )
    if asked.threads is not None and name == "reference":
        raise InvalidOption(
            f"runtime 'reference' counts in NumPy: leave out threads {asked.threads}, or use cpu"
        )
    if name == "transformers":
        if asked.mmproj:
            raise RuntimeUnavailable(
                "runtime 'transformers' reads no pictures: use cpu or torch, or leave mmproj out"
            )
        if asked.adapter:
            raise InvalidOption("runtime 'transformers' merges no adapter: use cpu or torch")
        if source.denoiser:
            raise InvalidOption(
                f"runtime 'transformers' fills no canvas of {asked.model}: use cpu or torch"
            )
        if not whole:  # it reads the model's own files
            raise InvalidOption(
                "runtime 'transformers' loads whole models: use another for an exit"
            )
    elif asked.max_context is not None and not drafts:
        reads = source.config.max_context
        if asked.max_context > reads:
            raise InvalidOption(
                f"max_context is {asked.max_context}, but {source.name} reads {reads} tokens at "
                "most: give no more, or a model file with a longer context"
            )
    return name


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
            f"no mask rows ship for {source.name}: {or_install()}train some with `paceline train "
            "mask-rows`, and give --denoiser rows=FILE"
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
    translated: bool = False,
    **options: Any,
) -> Loaded:
    """Load a draft model for `loaded`, likewise; options of `load_model` that it does not share.

    InvalidOption if the vocabularies differ, unless its drafts are `translated`.
    """
    small = load_model(
        replace(loaded.options, precision=precision),
        model=model,
        runtime=loaded.target.capabilities.runtime,
        drafts=True,
        **options,
    )
    if not translated and not small.tokenizer.agrees(loaded.tokenizer):
        raise InvalidOption(
            f"draft model {model} and target {loaded.source.name} have different "
            "vocabularies: use drafter 'draft-model' without option vocabulary, or a draft model "
            "of the target's family"
        )
    return small


def make_engine(
    loaded: Loaded,
    asked: Options = DEFAULTS,
    *,
    spare_draft: bool = False,
    progress: bool = True,
    **options: Any,
) -> Engine:
    """Build an engine over a loaded model, which engines may share. Options as for `load`.

    `spare_draft` lets a drafter leave `draft_model` unused; `Engine.config` says which do.
    """
    asked = replace(asked, **options) if options else asked
    facts = loaded.target.capabilities.denoises
    # A drafter that is named is for decoding from left to right.
    if facts is not None and asked.sampler is None and asked.drafter != "auto":
        asked = replace(asked, sampler=AUTOREGRESSIVE)
    canvas = facts is not None and asked.sampler != AUTOREGRESSIVE
    make = _canvas_decoder if canvas else partial(_draft_decoder, progress, spare_draft)
    decoder, config = make(loaded, asked)
    give_back()  # what was read to be packed
    defaults = loaded.source.sampling if asked.generation_config else {}
    reader, target = loaded.reader, loaded.target
    looking = None
    if reader is not None and isinstance(target, TakesRows):
        looking = Looking(reader, target)
    return Engine(
        decoder,
        loaded.tokenizer,
        max_batch=asked.max_batch,
        max_waiting=asked.max_waiting,
        step_tokens=asked.step_tokens,
        pool=asked.pool,
        prompt_policy=asked.prompt_policy,
        looking=looking,
        config={
            "model": loaded.source.name,
            **{each: getattr(loaded.target.capabilities, each) for each in _DESCRIBED},
            "version": __version__,
            **config,
        },
        defaults=defaults,
    )


def _draft_decoder(
    progress: bool, spare_draft: bool, loaded: Loaded, asked: Options
) -> tuple[AutoregressiveDecoder, dict[str, Any]]:
    _check_autoregressive(loaded, asked)
    capabilities = loaded.target.capabilities
    verifier = "coupled" if asked.verifier == "auto" else asked.verifier
    named, factories = registry.read("verifier", verifier)
    given = capabilities, loaded.source.fingerprint, loaded.tokenizer.encode, named.options
    rule = factories[named.name].create(VerifierContext(*given))
    load = partial(load_draft, progress=progress)
    resources = Resources(loaded, asked.draft_model, load, registry.online_learner)
    drafting = Assembly(resources, rule).make(
        Configuration(asked.drafter, asked.controller, asked.nodes, asked.depth)
    )
    if asked.draft_model and not (resources.drafted or spare_draft):
        raise InvalidOption(
            f"drafter '{drafting.settings['drafter']}' uses no draft model: use drafter "
            f"'draft-model' or leave out {asked.draft_model}"
        )
    stops = StopRules(loaded.tokenizer.eos_token_ids, capabilities.max_context)
    decoder = AutoregressiveDecoder(
        loaded.target, drafting.drafter, rule, drafting.controller, stops
    )
    return decoder, {
        **drafting.settings,
        "verifier": verifier,
        "lossless": rule.lossless,
        "draft_model": resources.named if resources.drafted else None,
    }


def _check_autoregressive(loaded: Loaded, asked: Options) -> None:
    name, capabilities = loaded.source.name, loaded.target.capabilities
    facts = capabilities.denoises
    if facts is not None and not facts.autoregressive:
        raise InvalidOption(
            f"{name} cannot decode from left to right: use another sampler, such as "
            f"{DEFAULT_SAMPLERS[facts.attention]}"
        )
    sampler = None if asked.sampler == AUTOREGRESSIVE else asked.sampler
    if (sampler, asked.block, asked.canvas_cache) != (None, None, None):
        raise InvalidOption(
            f"sampler, block and canvas_cache are for models that fill a canvas, and {name} does "
            "not: leave them out"
        )
    if asked.pool is not None and capabilities.runtime != "transformers":
        raise InvalidOption(
            f"pool is for runtime transformers, since {capabilities.runtime} pads nothing: leave it"
        )


# Options that a canvas has no use for.
_OF_DRAFTS = ["drafter", "verifier", "controller", "nodes", "depth", "draft_model"]
_OF_DRAFTS += ["step_tokens", "pool", "prompt_policy"]


def _canvas_decoder(loaded: Loaded, asked: Options) -> tuple[DenoisingDecoder, dict[str, Any]]:
    if any(getattr(asked, name) != getattr(DEFAULTS, name) for name in _OF_DRAFTS):
        raise InvalidOption(
            f"{', '.join(_OF_DRAFTS[:-1])} and {_OF_DRAFTS[-1]} are for autoregressive decoding, "
            f"and {loaded.source.name} fills a canvas: leave them out, or use sampler "
            f"'{AUTOREGRESSIVE}'"
        )
    target = loaded.target
    facts = target.capabilities.denoises
    assert facts is not None
    canvas = CanvasParams(asked.sampler, asked.block, asked.canvas_cache)
    ends = (*loaded.tokenizer.eos_token_ids, *facts.ends)
    stops = StopRules(ends, target.capabilities.max_context)
    decoder = DenoisingDecoder(target, facts, stops, make_parts, canvas)
    decoder.check(SamplingParams(max_new_tokens=1), None)  # requests come with their own size
    sampler = asked.sampler or DEFAULT_SAMPLERS[facts.attention]
    return decoder, {"sampler": sampler, "block": asked.block, "canvas_cache": asked.canvas_cache}


@Options.spread
def load(model: str = DEFAULT_MODEL, *, progress: bool = True, **options: Any) -> Engine:
    """Load a model and return an engine for it.

    Args:
        {options}
        progress: show what is downloaded and loaded.

    Raises:
        PacelineError: one line that names the fault and the fix.
    """
    asked = Options(model=model, **options)
    asked.check()
    return make_engine(load_model(asked, progress=progress), asked, progress=progress)
