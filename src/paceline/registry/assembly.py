"""Assembly of drafter and controller by name, or from the choices of `paceline tune`."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple, cast

from paceline.core.expressions import Expression, parse
from paceline.core.options import arguments
from paceline.core.target import Listens
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.combine.bandit import Choose
from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.drafters.combine.merged import Merged
from paceline.drafters.resources import Resources, has_coarser
from paceline.engine.by_temperature import ControllersByKind, DraftersByKind
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.source import smaller_sibling, without_adapters
from paceline.networks.mtp import has_own_head, lacks_own_head
from paceline.networks.weights import shipped_file
from paceline.policy.controller import Controller, ControllerContext, Fixed
from paceline.registry import table as registry
from paceline.registry import tuned_choice as tuned
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
_DEFAULT_OWN = "suffix-automaton>mtp"


class Drafting(NamedTuple):
    """Drafter and controller, and for reports the fields of a resolved `Configuration`.

    `settings` also holds `auto`: None, "tuned" or "default".
    """

    drafter: Drafter
    controller: Controller
    settings: dict[str, Any]


@dataclass(frozen=True)
class Assembly:
    """Drafters and controllers for a loaded target under one verifier."""

    resources: Resources
    rule: Verifier

    def make(self, asked: Configuration) -> Drafting:
        """Build the drafter and controller for all requests.

        For drafter "auto", a controller or sizes in `asked` replace the tuned ones.

        Raises:
            InvalidOption: a name or option is unknown, or parts do not go together.
            RuntimeUnavailable: the runtime lacks what the drafter needs.
        """
        if asked.drafter != "auto":
            return self._pair(asked)
        greedy, sampled = self._automatic(asked)
        return greedy if greedy is sampled else _by_kind(greedy, sampled)

    def _automatic(self, asked: Configuration) -> list[Drafting]:
        # Kinds with equal configurations share one drafter, and so what it learns.
        # Rules for sampled drafts need other drafters than the tuned ones.
        saved = tuned.read(self.resources.loaded.place) if None in self.rule.accepts else {}
        if self.resources.published is not None:  # they were measured without it
            saved = {}
        elif self.resources.named is not None:  # it is there to be used
            drafts = {k: parse(each.configuration.drafter, "drafter") for k, each in saved.items()}
            saved = {k: saved[k] for k, each in drafts.items() if "draft-model" in each.names}
        if self.rule.greedy_only:
            saved = dict.fromkeys(TEMPERATURE_KINDS, saved["greedy"]) if "greedy" in saved else {}
        of_tuned, of_default = cache(self._tuned), cache(self._pair)
        found: list[Drafting] = []
        for kind in TEMPERATURE_KINDS:
            made = of_tuned(_under(saved[kind].configuration, asked)) if kind in saved else None
            if made is None:
                default = _under(Configuration(self._default(kind)), asked)
                made = of_default(default, "default")
            found.append(made)
        return found

    def _default(self, kind: str) -> str:
        loaded, named = self.resources.loaded, self.resources.named
        capabilities = loaded.target.capabilities
        if isinstance(loaded.target, Listens) and loaded.target.mels:
            return "none"  # what is said repeats little of what was said
        if capabilities.runtime == "reference":  # where timing drafts alone takes minutes
            return "none"
        # A network's draft is cheap beside its target where both run on native kernels.
        able = capabilities.runtime == "cpu" and None in self.rule.accepts
        agrees = kind == "greedy" or self.rule.gumbel_coupled
        if (published := self.resources.published) is not None:
            return f"{DEFAULT_DRAFTER}>{published.wiring.drafter}"
        source = loaded.source
        if named is None and able and agrees and has_own_head(source.config, source.weights()):
            return _DEFAULT_OWN
        if able and kind == "greedy" and lacks_own_head(source.config, source.weights()):
            _LOG.info("no MTP head in %s (`nextn` or `mtp` in names of tensors)", source.name)
        shipped = able and agrees and shipped_file("eagle3", without_adapters(source).fingerprint)
        if has_coarser(capabilities) or shipped:
            default = _DEFAULT_COARSER if has_coarser(capabilities) else _DEFAULT_TRAINED
            # Which of them drafts is decided while decoding.
            return default if named is None else f"{default}>draft-model"
        if named is None and capabilities.runtime == "cpu":
            found = smaller_sibling(loaded.source)
            if found is not None:
                _LOG.info("%s, beside the model, drafts for it", found)
                self.resources.named = str(found)
        return DEFAULT_DRAFTER if self.resources.named is None else _DEFAULT_MODEL

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
        return self._pair(sought, "tuned", drafter)

    def _pair(
        self, sought: Configuration, auto: str | None = None, drafter: Drafter | None = None
    ) -> Drafting:
        drafter = drafter or self._drafter(sought.drafter)
        controller, nodes, depth = sought.controller, sought.nodes, sought.depth
        if controller == "auto":
            controller = "cost-model" if nodes is None and depth is None else "fixed"
        sizing, factories = registry.read("controller", controller)
        create = factories[sizing.name].create
        loaded = self.resources.loaded
        context = ControllerContext(lambda: loaded.costs, nodes, depth, sizing.options)
        sizes = create(context) if sought.drafter != "none" else Fixed(0, 0)
        if sought.drafter == "none":
            controller, nodes, depth = "fixed", 1, 1
        chosen = Configuration(sought.drafter, controller, nodes, depth)
        return Drafting(drafter, sizes, {**asdict(chosen), "auto": auto})

    def _drafter(self, name: str) -> Drafter:
        rule, target = self.rule, self.resources.loaded.target
        context = DrafterContext(
            self.resources,
            rule.accepts,
            rule.shape,
            rule.gumbel_coupled,
            # A lossy rule could accept nodes that hold an embedding instead of a token.
            embeddings=target.capabilities.embeddings and rule.lossless,
        )
        drafter = make_drafter(name, context)
        if name != "none" and drafter.kind not in rule.accepts:
            takes = ", ".join(sorted(kind or "deterministic" for kind in rule.accepts))
            raise InvalidOption(
                f"verifier '{rule.name}' takes {takes} drafts, and drafter '{name}' makes "
                f"{drafter.kind or 'deterministic'} ones: use verifier 'coupled' or drafter "
                "'draft-model'"
            )
        return drafter


def make_drafter(text: str, context: DrafterContext) -> Drafter:
    """Build a drafter for a target; InvalidOption if unknown, or if parts cannot work together."""
    expression, factories = registry.read("drafter", text)
    if any(each.sign in ("+", "|") for each in (expression, *expression.parts)):
        # Parts see each other's drafts and take all nodes for tokens.
        context = replace(context, embeddings=False)

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
