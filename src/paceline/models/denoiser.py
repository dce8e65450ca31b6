"""What a checkpoint says of how it fills a canvas, and the options that say it instead.

Each fact is from the first that has it: options, `config.json`, the tokenizer (the mask token
alone), the family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from paceline.core.expressions import parse
from paceline.core.options import require
from paceline.core.types import Attention, CanvasTraits
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.families import family_of

_KINDS = get_args(Attention)
_RULES = {
    "mask": "a token id, 0 or more",
    "attention": " or ".join(_KINDS),
    "block": "a count of tokens, 1 or more",
    "shift": "true or false",
    "autoregressive": "true or false",
    "rows": "auto, or a file of `paceline train mask-rows`",
}
_TRUTH = {"true": True, "false": False}
# Names in the entry "denoiser" of a `config.json` that differ from those of the options.
_OWN = {"mask_token_id": "mask", "block_size": "block"}
# Names beside the other entries, where remote code reads them.
_REMOTE = {**_OWN, "bd_size": "block", "canvas_length": "block"}


def denoiser_options(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Read options such as "mask=126336,attention=full", or a mapping of them.

    "rows" names trained mask rows, which say all the rest; alone, those that ship. See `load`.

    Raises:
        InvalidOption: an option is unknown, or its value is of another kind.
    """
    if given == "rows":
        return {"rows": "auto"}
    if isinstance(given, str):
        given = parse(f"denoiser:{given}", "denoiser").options
    return {name: _value(name, value) for name, value in (given or {}).items()}


def denoises(
    config: ModelConfig,
    entries: Mapping[str, Any],
    options: Mapping[str, Any],
    tokenizer_mask: Callable[[], int | None],
) -> CanvasTraits | None:
    """Return how a model fills a canvas, None if nothing says that it does.

    Args:
        config: of the model.
        entries: of its `config.json`.
        options: see `denoiser_options`.
        tokenizer_mask: returns the mask token of its tokenizer, if there is one.

    Raises:
        InvalidOption: a fact is missing, or cannot be one of this model.
    """
    family, own = family_of(config).facts, entries.get("denoiser")
    if not (family or own or options):
        return None
    require(own is None or isinstance(own, Mapping), "denoiser in config.json", own, "an object")
    said = {mine: entries[name] for name, mine in _REMOTE.items() if entries.get(name) is not None}
    said |= {_OWN.get(name, name): value for name, value in (own or {}).items()}
    said = {name: _value(name, value) for name, value in said.items() if value is not None}
    said |= options
    if "mask" not in said and (token := tokenizer_mask()) is not None:
        said["mask"] = token
    facts = {**family, **said}
    kind, block = facts.get("attention"), facts.get("block")
    needed = ["mask", "attention"]
    if kind == "block" and "block_size" not in (own or {}):  # null: any
        needed.append("block")
    for name in needed:
        if name not in facts:
            raise InvalidOption(
                f"the model's files do not say the denoiser's {name}: give {_RULES[name]}, with "
                f"--denoiser {name}=..."
            )
    known = range(config.vocab_size)
    require(facts["mask"] in known, "denoiser mask", facts["mask"], f"a token of {len(known)}")
    if block is not None:
        context = config.max_context
        rule = f"a divisor of the context of {context} tokens"
        require(context % block == 0, "denoiser block", block, rule)
    ends = tuple(each for each in facts.get("ends", ()) if each in known)
    shifted, chain = (bool(facts.get(name)) for name in ("shift", "autoregressive"))
    return CanvasTraits(facts["mask"], facts["attention"], block, shifted, chain, ends)


def _value(name: str, value: Any) -> Any:
    # A fact from an option's text, from Python or from JSON.
    if name not in _RULES:
        raise InvalidOption(f"denoiser has no option {name!r}: use {', '.join(_RULES)}")
    if name == "rows":
        good = isinstance(value, str) and bool(value)
    elif name in ("mask", "block"):
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        good = type(value) is int and value >= (name == "block")
    elif name == "attention":
        good = value in _KINDS
    else:
        value = _TRUTH.get(value, value) if isinstance(value, str) else value
        good = isinstance(value, bool)
    require(good, f"denoiser {name}", value, _RULES[name])
    return value
