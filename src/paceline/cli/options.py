"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, cast

import typer

from paceline.core.options import split_options
from paceline.core.target import RuntimeOptions
from paceline.core.types import Layout
from paceline.errors import InvalidOption
from paceline.registry import table as registry
from paceline.registry.expressions import check_drafter
from paceline.runtimes.cpu.kv_formats import check_kv_precision

Model = Annotated[
    str, typer.Option(help="smollm2-135m, a GGUF file, a Hugging Face directory, or a hub id.")
]
Runtime = Annotated[str, typer.Option(help="openvino, torch, transformers or auto.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default by runtime.")]
Precision = Annotated[str | None, typer.Option(help="int8, int4, fp32, ... as the runtime has.")]
TreeLayout = Annotated[
    str | None, typer.Option("--layout", help="Trees: exact (bit-exact) or masked (cheaper).")
]
Drafter = Annotated[
    str,
    typer.Option(
        help="See `paceline methods`; none is plain decoding, A+B merges; auto is what `paceline "
        "tune` found."
    ),
]
Verifier = Annotated[
    str,
    typer.Option(help="See `paceline methods`; auto is coupled. Options: NAME:key=value,..."),
]
Controller = Annotated[
    str, typer.Option(help="cost-model, fixed, or auto: fixed if --nodes or --depth is given.")
]
Nodes = Annotated[int | None, typer.Option(help="Draft size in tokens.")]
Depth = Annotated[int | None, typer.Option(help="Draft depth in tokens.")]
DraftModel = Annotated[str | None, typer.Option(help="Model for --drafter draft-model.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest sequence in tokens.")]
MaxNewTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Sample from the most likely tokens of this mass.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest one.")]
RepetitionPenalty = Annotated[float, typer.Option(help="For tokens in prompt or output; 1 is off.")]
PresencePenalty = Annotated[float, typer.Option(help="Subtracted once for tokens in the output.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtracted per occurrence in the output.")]
Seed = Annotated[int, typer.Option(help="Keys all randomness.")]
Stop = Annotated[list[str] | None, typer.Option(help="String that ends the text; repeatable.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after end tokens.")]
StopLoops = Annotated[
    bool, typer.Option("--stop-loops", help="End a text that has come to repeat itself.")
]
System = Annotated[str | None, typer.Option(help="System message.")]
KvTokens = Annotated[int | None, typer.Option(help="Tokens that all requests may have cached.")]
PrefixTokens = Annotated[
    int | None, typer.Option(help="Cached tokens kept for prompts that begin alike; 0 is off.")
]
KvPrecision = Annotated[
    str | None, typer.Option(help="Of the key-value cache: fp32, fp16, bf16, or u8 (lossy).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def runtime_options(
    device: str | None = None,
    precision: str | None = None,
    layout: str | None = None,
    threads: int | None = None,
    max_context: int | None = None,
    kv_tokens: int | None = None,
    prefix_tokens: int | None = None,
    kv_precision: str | None = None,
) -> RuntimeOptions:
    """Checked options for loading a model.

    Raises:
        InvalidOption: an unknown layout or cache precision, or a count below 1.
    """
    if kv_precision is not None:
        check_kv_precision(kv_precision)
    if layout not in (None, "exact", "masked"):
        raise InvalidOption(f"layout {layout!r} is unknown: use exact or masked")
    counts = {"threads": threads, "max-context": max_context, "kv-tokens": kv_tokens}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InvalidOption(f"--{name} must be 1 or more, not {value}")
    known = cast(Layout | None, layout)
    return RuntimeOptions(
        device, precision, known, threads, max_context, kv_tokens, prefix_tokens, kv_precision
    )


def check_names(runtime: str, verifier: str, controller: str, *drafters: str) -> None:
    """Find unknown methods before anything is downloaded or loaded.

    Raises:
        InvalidOption: a name is unknown; the message lists what there is.
    """
    named: list[tuple[registry.Kind, str]] = [
        ("runtime", runtime),
        ("verifier", split_options(verifier, "verifier")[0]),
        ("controller", split_options(controller, "controller")[0]),
    ]
    for kind, name in named:
        if name != "auto":
            registry.find(kind, name)
    for drafter in drafters:
        if drafter != "auto":
            check_drafter(drafter)


_OPTION = re.compile(r"\s*[\w-]+\s*=")


def drafter_names(texts: Iterable[str], option: str) -> list[str]:
    """Names of drafters from lists with commas, which options have, too.

    An item of the form key=value goes on with the options of the item before it, if that has a
    colon: "a:x=1,y=2,b" is two drafters.

    Args:
        texts: as users write them, one list or several.
        option: where they stand, for messages.

    Raises:
        InvalidOption: a name is empty, or stands there twice.
    """
    names: list[str] = []
    for text in texts:
        mine: list[str] = []
        for item in text.split(","):
            if mine and ":" in mine[-1] and _OPTION.match(item):
                mine[-1] += f",{item.strip()}"
            else:
                mine.append(item.strip())
        if not all(mine):
            raise InvalidOption(f"{option} {text!r} has an empty name: separate names by one comma")
        names += mine
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"{option} names {name} twice: name it once")
    return names
