"""All options of an engine, each once: its default, help and bounds stand at the field.

`paceline.load`, its docstring, the command line and its page, and the server's configuration are
made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from inspect import signature
from textwrap import fill
from typing import Annotated, Any, Self, TypeVar, get_type_hints

from paceline.core.options import Allowed, among, described
from paceline.core.target import RuntimeOptions
from paceline.models.pull import DEFAULT_MODEL
from paceline.registry import table as registry
from paceline.registry.samplers import make_plan, make_sampler

T = TypeVar("T")

AUTOREGRESSIVE = "autoregressive"
"""The sampler that is none: plain decoding, and drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(RuntimeOptions):
    """What an engine is made of. None and "auto" leave a choice to paceline."""

    model: Annotated[
        str,
        "smollm2-135m, a GGUF file, a Hugging Face directory, or a hub id.",
        Allowed(lambda value: isinstance(value, str), "a name or a path as text"),
    ] = DEFAULT_MODEL
    adapter: Annotated[
        list[str] | None,
        "LoRA adapter, PATH or PATH=SCALE: a GGUF file, PEFT's folder, or the name of one that "
        "ships; repeatable.",
    ] = None
    mmproj: Annotated[
        str | None,
        "What reads pictures for a GGUF model: its mmproj file, a connector's folder, or its name.",
    ] = None
    runtime: Annotated[str, "cpu, torch, transformers, reference or auto."] = "auto"
    denoiser: Annotated[
        str | Mapping[str, Any] | None,
        "Facts of a diffusion checkpoint that its files do not say: "
        "mask=ID,attention=full|block|order,block=N,shift=true|false. Or rows: trained mask rows.",
    ] = None
    drafter: Annotated[
        str,
        "See `paceline methods`; none is plain decoding, A+B merges; auto is what `paceline "
        "tune` found.",
    ] = "auto"
    verifier: Annotated[
        str, "See `paceline methods`; auto is coupled. Options: NAME:key=value,..."
    ] = "auto"
    controller: Annotated[
        str, "cost-model, fixed, or auto: fixed if --nodes or --depth is given."
    ] = "auto"
    nodes: Annotated[int | None, "Draft size in tokens."] = None
    depth: Annotated[int | None, "Draft depth in tokens."] = None
    draft_model: Annotated[
        str | None, "Draft model, or a published drafter: a path or a hub id."
    ] = None
    max_batch: Annotated[int, "Most sequences decoded together."] = 8
    max_waiting: Annotated[int | None, "Most sequences that wait."] = None
    step_tokens: Annotated[
        int | None, "Most rows of a forward that combines prefill and decoding."
    ] = None
    pool: Annotated[
        int | None,
        "On runtime transformers: the fewest sequences of equal length that take a step without "
        "the others, so that nothing is padded.",
    ] = None
    prompt_policy: Annotated[
        str,
        "Which prompt is read first: fcfs (what came first), lcas (whose last piece came last) or "
        "mcps (of which most is read); whole ones before those that are still written.",
        among("fcfs", "lcas", "mcps"),
    ] = "fcfs"
    sampler: Annotated[
        str | None,
        "For models that fill a canvas, see `paceline methods`: RULE, WRAPPER>RULE, or "
        "autoregressive.",
    ] = None
    block: Annotated[int | None, "Places that are filled before those right of them."] = None
    canvas_cache: Annotated[
        str | None, "Which keys of a canvas are kept, see `paceline methods`."
    ] = None
    chat_template: Annotated[
        str | None, "In place of the model's: a Jinja file, or the text itself."
    ] = None
    fold_system: Annotated[
        bool, "Put system messages before the first user turn, if the template takes none."
    ] = False
    generation_config: Annotated[
        bool, "Sampling that is not given is what the model's files ask for."
    ] = True

    @classmethod
    def of(cls, asked: Self | RuntimeOptions | str, **values: Any) -> Self:
        """Return options of a model by name, or of others, with other values."""
        if isinstance(asked, cls):
            return replace(asked, **values) if values else asked
        if isinstance(asked, RuntimeOptions):
            return cls(**asdict(asked) | values)
        return cls(model=asked, **values)

    @property
    def of_runtime(self) -> RuntimeOptions:
        """The part that a runtime takes."""
        return RuntimeOptions(
            **{each.name: getattr(self, each.name) for each in fields(RuntimeOptions)}
        )

    def check(self, *drafters: str) -> None:
        """Find unknown methods before anything is loaded: of these options, and other drafters.

        Raises:
            InvalidOption: a name is unknown; the message lists what there is.
        """
        if self.runtime != "auto":
            registry.find("runtime", self.runtime)
        named: list[tuple[registry.Kind, str]] = [
            ("verifier", self.verifier),
            ("controller", self.controller),
            *(("drafter", each) for each in (self.drafter, *drafters)),
        ]
        for kind, text in named:
            if text != "auto":
                registry.read(kind, text)
        if self.sampler is not None and self.sampler != AUTOREGRESSIVE:
            make_sampler(self.sampler)
        if self.canvas_cache is not None:
            make_plan(self.canvas_cache)

    @classmethod
    def spread(cls, load: Callable[..., T]) -> Callable[..., T]:
        """Show all options in the signature and the docstring of `load(model, *, ..., **options)`.

        The docstring has `{options}` where they belong.
        """
        own, hints = signature(load), get_type_hints(cls)
        model, *others = (each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD)
        taken = [
            each.replace(kind=each.KEYWORD_ONLY, annotation=hints[each.name])
            for each in signature(cls).parameters.values()
            if each.name != model.name
        ]
        load.__signature__ = own.replace(parameters=[model, *taken, *others])  # type: ignore[attr-defined]
        lines = [
            fill(f"{name}: {text}", 100, initial_indent=" " * 8, subsequent_indent=" " * 12)
            for name, text in described(cls)
        ]
        load.__doc__ = str(load.__doc__).format(options="\n".join(lines).lstrip())
        return load


DEFAULTS = Options()
