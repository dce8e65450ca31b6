"""What papers claim, a line a system, and how it runs here: `claims.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, TypeVar

from paceline.core.expressions import parse
from paceline.errors import InvalidOption
from paceline.lab.measure.parallel import AUTOREGRESSIVE, Setting
from paceline.registry import table
from paceline.trees.choice import named_expansion

L = TypeVar("L", bound="TableLine")

DRAFT = "{draft}"
"""In a drafter's name: the draft model, or a trained drafter where none is given."""

NO_CLAIM = re.compile(r"no (paper|figure at hand)\b[;,:]? ?")
"""How a claim begins that needs no source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """A system: what its paper claims, and why the figures differ.

    Attributes:
        paper: source of the claim, where it is not that of the line's own method.
        result: the result file whose figures are the line's; None for lines with rows of their own.
        code: modules or folders of what no method of the registry is.
    """

    system: str
    claim: str
    why: str
    paper: str = ""
    result: str | None = None
    group: str = ""
    code: tuple[str, ...] = ()

    def shown(self, draft: bool) -> str:
        """Return the configuration, with the drafter that runs with a draft model or without."""
        return ""

    def methods(self) -> Iterator[tuple[table.Kind, str]]:
        """Yield kind and name of every method that the line uses, its own one first."""
        yield from ()

    @property
    def source(self) -> str:
        """Return the paper of the claim; InvalidOption if something is claimed by none."""
        papers = (table.find(*each).paper for each in self.methods())
        found = self.paper or next((each for each in papers if each != "-"), "")
        if not found and not NO_CLAIM.match(self.claim):
            raise InvalidOption(
                f"claims.toml: {self.system} claims {self.claim!r} and names no paper: add paper"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(TableLine):
    """A system that drafts and verifies, as `paceline bench` runs it.

    Attributes:
        tokens: of an answer, where the run's are too few for the paper's mode.
        samples: texts of each prompt, one behind the other; every one has randomness of its own.
    """

    drafter: str
    verifier: str = "auto"
    controller: str = "auto"
    temperature: float = 0.0
    nodes: int | None = None
    depth: int | None = None
    work: str | None = None
    tokens: int | None = None
    samples: int = 1
    group: str = "Autoregressive"

    def named(self, draft: bool) -> str:
        """Return the drafter as the command line writes it, with a draft model or without."""
        return self.drafter.replace(DRAFT, "draft-model" if draft else "eagle3")

    @property
    def configuration(self) -> str:
        """Return the options of `paceline bench` that the paper's sizes have."""
        sizes = {"verifier": self.verifier, "controller": self.controller}
        shown = [f"--{key} {value}" for key, value in sizes.items() if value != "auto"]
        shown += [f"--{key} {getattr(self, key)}" for key in ("nodes", "depth") if self.sized(key)]
        return " ".join([self.drafter, *shown])

    def shown(self, draft: bool) -> str:
        return self.configuration.replace(self.drafter, self.named(draft))

    def sized(self, key: str) -> bool:
        return getattr(self, key) is not None

    @property
    def mode(self) -> str:
        """Return temperature and prompts."""
        mode = f"T = {self.temperature:g}" if self.temperature else "greedy"
        several = f", {self.samples} texts of each" if self.samples > 1 else ""
        longer = f", {self.tokens} tokens" if self.tokens else ""
        return f"{mode}, {self.work or 'mix'}{several}{longer}"

    @property
    def guarantee(self) -> str:
        """Return what the registry says of the rule, and of the drafter where that is lossless."""
        name = parse("coupled" if self.verifier == "auto" else self.verifier, "verifier").name
        found = table.find("verifier", name).guarantee
        return "lossless" if found.startswith("lossless at") else found.split(":")[0]

    def methods(self) -> Iterator[tuple[table.Kind, str]]:
        rules: list[tuple[table.Kind, str]] = []
        if self.controller != "auto":
            rules.append(("controller", self.controller))
        drafters = parse(self.named(True), "drafter").methods()
        rules += [
            ("growth", named_expansion(each.options["growth"]).name)
            for each in drafters
            if "growth" in each.options
        ]
        if self.verifier != "auto":
            rules.append(("verifier", parse(self.verifier, "verifier").name))
        names: list[tuple[table.Kind, str]] = [("drafter", each.name) for each in drafters]
        # With a draft model alone, the rule is what the paper is of.
        yield from (*rules, *names) if self.drafter.startswith(DRAFT) else (*names, *rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanvasClaim(TableLine):
    """A system that fills a canvas: the sampler of a model that ships, and one to stand beside."""

    model: str
    sampler: str
    block: int | None = None
    cache: str | None = None
    beside: str = "counts"
    beside_cache: str | None = None
    ending: Literal["fill", "cut", "hold"] = "fill"
    prompt_rows: Literal["blocks", "causal"] = "blocks"
    temperature: float = 0.0
    group: str = "Canvas"

    @property
    def settings(self) -> tuple[Setting, Setting]:
        """Return what stands beside, and the line's own."""
        beside = Setting(self.beside, self.block, self.beside_cache)
        alone = Setting(self.beside) if self.beside == AUTOREGRESSIVE else beside
        own = Setting(self.sampler, self.block, self.cache, self.ending, self.prompt_rows)
        return alone, own

    def shown(self, draft: bool) -> str:
        return self.settings[1].label

    @property
    def mode(self) -> str:
        """Return model and temperature, and what stands beside."""
        warm = f", T = {self.temperature:g}" if self.temperature else ""
        return f"{self.model}{warm}, beside {self.settings[0].label}"

    def methods(self) -> Iterator[tuple[table.Kind, str]]:
        plan = self.cache and parse(self.cache, "cache").name
        if plan and plan not in ("none", "exact"):
            yield "cache", plan
        for method in parse(self.sampler, "sampler").methods():
            yield "sampler", method.name


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherClaim(TableLine):
    """A system that another benchmark measures, or that none can."""

    kind: table.Kind | None = None
    method: str = ""
    group: str = "Adjacent"

    def shown(self, draft: bool) -> str:
        return self.method

    def methods(self) -> Iterator[tuple[table.Kind, str]]:
        if self.kind is not None:
            yield self.kind, self.method


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamClaim(OtherClaim):
    """A system whose input is not finished yet."""

    kind: table.Kind | None = "stream"
    group: str = "Streaming"


KINDS: dict[str, type[TableLine]] = {
    "line": Claim,
    "canvas": CanvasClaim,
    "stream": StreamClaim,
    "other": OtherClaim,
}
"""Class by table of `claims.toml`."""


def told() -> dict[str, Any]:
    """Return the file as it is."""
    text = files("paceline.lab.measure").joinpath("claims.toml").read_text("utf-8")
    return tomllib.loads(text)


def every_line() -> list[TableLine]:
    """Return the lines of all kinds, in the order of the page."""
    return [kind(**each) for key, kind in KINDS.items() for each in told().get(key, ())]


def lines() -> list[Claim]:
    """Return the lines that draft and verify, in the order of the page."""
    return [each for each in every_line() if isinstance(each, Claim)]


def canvases() -> list[CanvasClaim]:
    """Return the lines that fill a canvas."""
    return [each for each in every_line() if isinstance(each, CanvasClaim)]


def chosen(of: Sequence[L], only: Sequence[str], skip: Sequence[str]) -> list[L]:
    """Return lines with a word of `only` in system or configuration, and none of `skip`.

    Raises InvalidOption for a word that no line has, and for a claim without a source.
    """

    def has(line: L, word: str) -> bool:
        return word.lower() in f"{line.system} {line.shown(False)} {line.shown(True)}".lower()

    for word in (*only, *skip):
        if not any(has(line, word) for line in of):
            raise InvalidOption(
                f"no line has {word!r} in its name: the systems are "
                + ", ".join(line.system for line in of)
            )
    found = [line for line in of if not only or any(has(line, word) for word in only)]
    found = [line for line in found if not any(has(line, word) for word in skip)]
    assert all(line.source is not None for line in found)
    return found
