"""Assembly of drafter and controller by name, or from the choices of `paceline tune`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NoReturn, cast

from paceline.core.expressions import Expression, parse
from paceline.core.options import arguments
from paceline.core.target import Target
from paceline.core.types import Capabilities
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.combine.bandit import Choose
from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.drafters.combine.merged import Merged
from paceline.engine.by_temperature import ControllersByKind, DraftersByKind
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.source import drafting_denoiser, smaller_sibling
from paceline.models.translation import Translation
from paceline.networks.weights import shipped_file
from paceline.policy.controller import Controller, ControllerContext, Fixed
from paceline.registry import table as registry
from paceline.registry import tuned_choice as tuned
from paceline.registry.loaded import Loaded
from paceline.registry.tuned_choice import TEMPERATURE_KINDS, Configuration
from paceline.verifiers.base import Verifier

_LOG = logging.getLogger(__name__)

# Drafter "auto" without a tuned choice.
DEFAULT_DRAFTER = "suffix-automaton"

# The same, for a target that can also be loaded at a lower precision.
_DEFAULT_COARSER = "suffix-automaton>quantised"

# The same, for a target with nothing but a draft model: one that is named, or a small one
# beside the target's file. Beside what else there is, a named one is the last of the candidates.
_DEFAULT_MODEL = "suffix-automaton+recycling>draft-model"

# The same, for a target with a shipped draft network. Sampled requests also need a verifier that
# uses the Gumbel noise that the network drafts with.
_DEFAULT_TRAINED = "suffix-automaton>eagle3"


@dataclass(frozen=True, slots=True)
class Drafting:
    """Drafter and controller of an engine, and the resolved `Configuration` fields for reports.

    `settings` also holds `auto`: None, "tuned" or "default".
    """

    drafter: Drafter
    controller: Controller
    settings: dict[str, Any]


class SpeculationBuilder:
    """Build drafters and controllers for a loaded target under one verifier."""

    def __init__(
        self,
        loaded: Loaded,
        rule: Verifier,
        verifier: str,
        draft_model: str | None,
        load_draft: Callable[[str, bool], Loaded],
    ) -> None:
        self._loaded = loaded
        self._rule = rule
        self._verifier = verifier
        self.draft_model = draft_model
        self._load_draft = load_draft
        self.draft_unused = draft_model is not None  # until a drafter asks for it
        self._small: dict[int, Loaded] = {}  # draft models, by the id of their target

    def make(self, asked: Configuration) -> Drafting:
        """Build the drafter and controller for all requests.

        For drafter "auto", a controller or sizes in `asked` replace the tuned ones.

        Raises:
            InvalidOption: a name or option is unknown, or parts do not go together.
            RuntimeUnavailable: the runtime lacks what the drafter needs.
        """
        if asked.drafter != "auto":
            return self._pair(self._drafter(asked.drafter), asked, None)
        greedy, sampled = self._automatic(asked)
        return greedy if greedy is sampled else _by_kind(greedy, sampled)

    def _automatic(self, asked: Configuration) -> list[Drafting]:
        # Kinds with equal configurations share one drafter, and so what it learns.
        # Rules for sampled drafts need other drafters than the tuned ones.
        saved = tuned.read(self._loaded.place) if None in self._rule.accepts else {}
        if self.draft_model is not None:  # it is there to be used
            drafts = {k: parse(each.configuration.drafter, "drafter") for k, each in saved.items()}
            saved = {k: saved[k] for k, each in drafts.items() if "draft-model" in each.names}
        if self._rule.greedy_only:
            saved = dict.fromkeys(TEMPERATURE_KINDS, saved["greedy"]) if "greedy" in saved else {}
        wanted = {kind: _under(choice.configuration, asked) for kind, choice in saved.items()}
        made = {each: self._tuned(each) for each in dict.fromkeys(wanted.values())}
        found = [made[wanted[kind]] if kind in wanted else None for kind in TEMPERATURE_KINDS]
        if None not in found:
            return [each for each in found if each is not None]
        defaults = [self._default(kind) for kind in TEMPERATURE_KINDS]
        untuned = {
            name: self._pair(self._drafter(name), _under(Configuration(name), asked), "default")
            for name, known in zip(defaults, found, strict=True)
            if known is None
        }
        return [
            untuned[name] if known is None else known
            for name, known in zip(defaults, found, strict=True)
        ]

    def _default(self, kind: str) -> str:
        loaded = self._loaded
        capabilities = loaded.target.capabilities
        if capabilities.runtime == "reference":  # where timing drafts alone takes minutes
            return "none"
        # A network's draft is cheap beside its target where both run on native kernels.
        able = capabilities.runtime == "cpu" and None in self._rule.accepts
        agrees = kind == "greedy" or self._rule.gumbel_coupled
        shipped = able and agrees and shipped_file("eagle3", loaded.source.fingerprint)
        if has_coarser(capabilities) or shipped:
            default = _DEFAULT_COARSER if has_coarser(capabilities) else _DEFAULT_TRAINED
            # Which of them drafts is decided while decoding.
            return default if self.draft_model is None else f"{default}>draft-model"
        if self.draft_model is None and capabilities.runtime == "cpu":
            found = smaller_sibling(loaded.source)
            if found is not None:
                _LOG.info("%s, beside the model, drafts for it", found)
                self.draft_model = str(found)
        return DEFAULT_DRAFTER if self.draft_model is None else _DEFAULT_MODEL

    def _tuned(self, sought: Configuration) -> Drafting | None:
        # None, with a warning, if the drafter is no longer available.
        try:
            drafter = self._drafter(sought.drafter)
        except (InvalidOption, RuntimeUnavailable) as error:
            print(
                f"paceline: warning: the tuned drafter '{sought.drafter}' cannot be had any more "
                f"({error}): using '{DEFAULT_DRAFTER}'; run paceline tune again",
                file=sys.stderr,
            )
            return None
        return self._pair(drafter, sought, "tuned")

    def _pair(self, drafter: Drafter, sought: Configuration, auto: str | None) -> Drafting:
        controller, nodes, depth = sought.controller, sought.nodes, sought.depth
        if controller == "auto":
            controller = "cost-model" if nodes is None and depth is None else "fixed"
        sizing = parse(controller, "controller")
        create = registry.find("controller", sizing.name).load().create
        context = ControllerContext(lambda: self._loaded.costs, nodes, depth, sizing.options)
        sizes = create(context) if sought.drafter != "none" else Fixed(0, 0)
        if sought.drafter == "none":
            controller, nodes, depth = "fixed", 1, 1
        chosen = Configuration(sought.drafter, controller, nodes, depth)
        return Drafting(drafter, sizes, {**asdict(chosen), "auto": auto})

    def _drafter(self, name: str) -> Drafter:
        drafter = make_drafter(parse(name, "drafter"), self._context(name))
        if name != "none" and drafter.kind not in self._rule.accepts:
            takes = ", ".join(sorted(kind or "deterministic" for kind in self._rule.accepts))
            raise InvalidOption(
                f"verifier '{self._verifier}' takes {takes} drafts, and drafter '{name}' makes "
                f"{drafter.kind or 'deterministic'} ones: use verifier 'coupled' or drafter "
                "'draft-model'"
            )
        return drafter

    def _context(self, name: str) -> DrafterContext:
        target, source, rule = self._loaded.target, self._loaded.source, self._rule
        model = partial(self._draft_model, name)
        return DrafterContext(
            target.capabilities,
            lambda: model().target,
            rule.accepts,
            rule.shape,
            rule.gumbel_coupled,
            model=source.fingerprint,
            run_network=getattr(target, "run_network", None),
            # A lossy rule could accept nodes that hold an embedding instead of a token.
            add_embeddings=getattr(target, "add_embeddings", None) if rule.lossless else None,
            costs=lambda: self._loaded.costs,
            source=source,
            coarser=self._coarser if has_coarser(target.capabilities) else None,
            any_draft_model=lambda: self._translated(model(translated=True)),
            denoiser=lambda: model(default=drafting_denoiser(source.fingerprint)).target,
            below=self._context_below,
            layered=target if target.capabilities.blocks else None,
            learner=registry.online_learner,
        )

    def _draft_model(
        self, drafter: str, *, translated: bool = False, default: str | None = None
    ) -> Loaded:
        # The user's draft model, or else a default, for a drafter that asks for one.
        named = self.draft_model or default
        if named is None:
            raise InvalidOption(
                f"drafter '{drafter}' needs a draft model: name one with --draft-model"
            )
        self.draft_unused = False
        found = self._load_draft(named, translated)
        self._small[id(found.target)] = found
        return found

    def _translated(self, model: Loaded) -> tuple[Target, Translation]:
        return model.target, Translation(self._loaded.tokenizer, model.tokenizer)

    def _context_below(self, model: Target) -> DrafterContext:
        # For what drafts for a draft model, or for the coarser target.
        source = self._small.get(id(model), self._loaded).source
        return DrafterContext(
            model.capabilities,
            _none_below,
            gumbel_coupled=None in self._rule.accepts,
            model=source.fingerprint,
            run_network=getattr(model, "run_network", None),
            source=source,
        )

    def _coarser(self) -> Target:
        options = replace(self._loaded.options, precision="int8", kv_precision=None)
        target: Target = type(self._loaded.target).load(self._loaded.source, options)  # type: ignore[attr-defined]
        return target


def make_drafter(expression: Expression, context: DrafterContext) -> Drafter:
    """Build a drafter for a target; InvalidOption if unknown, or if parts cannot work together."""
    if any(each.sign in ("+", "|") for each in (expression, *expression.parts)):
        # Parts see each other's drafts and take all nodes for tokens.
        context = replace(context, add_embeddings=None)
    # All names first, since making a part may load a model.
    factories = {name: registry.find("drafter", name).load() for name in expression.names}

    def make(node: Expression) -> Drafter:
        if not node.parts:
            factory = factories[node.name]
            return cast(Drafter, factory.create(replace(context, options=node.options)))
        combined: Any = {"|": Choose, ">": FallbackDrafter, "+": Merged}[node.sign]
        settings = {"way": node.name} if node.name and node.sign == "+" else {}
        if node.options:
            settings |= arguments(combined, "drafter", node.options, "way")
        return cast(Drafter, combined([make(part) for part in node.parts], **settings))

    return make(expression)


def _none_below() -> NoReturn:
    raise InvalidOption(
        "what drafts at the bottom of a cascade has no draft model: use a drafter without one"
    )


def has_coarser(capabilities: Capabilities) -> bool:
    """Return whether drafter "quantised" can draft for a target."""
    return capabilities.runtime == "cpu" and capabilities.precision == "fp32"


def _under(found: Configuration, asked: Configuration) -> Configuration:
    if asked.controller == "auto" and asked.nodes is None and asked.depth is None:
        return found
    return replace(asked, drafter=found.drafter)


def _by_kind(greedy: Drafting, sampled: Drafting) -> Drafting:
    pairs = zip(greedy.settings.items(), sampled.settings.values(), strict=True)
    settings = {
        key: one if one == other else f"{one} (greedy), {other} (sampled)"
        for (key, one), other in pairs
    }
    kinds = {greedy.settings["auto"], sampled.settings["auto"]}
    return Drafting(
        DraftersByKind(greedy.drafter, sampled.drafter),
        ControllersByKind(greedy.controller, sampled.controller),
        {**settings, "auto": "tuned" if "tuned" in kinds else "default"},
    )
