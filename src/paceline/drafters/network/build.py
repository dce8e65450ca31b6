"""Construction of a trained drafter: from its options to a network that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, cast

from paceline.core.options import arguments
from paceline.drafters.base import DrafterContext
from paceline.drafters.network.first_drafts import FirstDrafts
from paceline.drafters.network.online import Learning, LearntFile, Online, find_learner
from paceline.drafters.network.stopping_head import (
    MIN_CHAIN_PROB,
    AcceptanceHead,
    AcceptanceStop,
    check_steps,
    load_acceptance_head,
)
from paceline.drafters.network.trees import TreeDrafts
from paceline.drafters.network.weights import digest_of, fitting, shipped
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.networks.mtp import Mtp, own_head
from paceline.networks.published import Published, open_head
from paceline.networks.published.wirings import ALONE, DRAFTERS, WiringChanges
from paceline.networks.runner import NetworkTarget, Runner
from paceline.networks.weights import Trained

_LEARNING = ("online", "rate", "save")
_WIRING = ("boundaries", "shift", "norm_output")


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """Network with certain weights, ready to run; `trees` None means argmax chains."""

    runner: Runner
    trees: TreeDrafts | None = None


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """Parts of a trained drafter; `options` are those left for the drafter's constructor.

    `places` are those of what it reads among the parts of the target's features; None for the usual
    parts, all of them. `first` counts the drafts of a published head.
    """

    begin: LoadedNetwork
    options: dict[str, str]
    trained: Trained
    head: AcceptanceHead | None
    online: Online[LoadedNetwork] | None
    places: Sequence[int] | None = None
    first: FirstDrafts | None = None

    @classmethod
    def load(cls, context: DrafterContext, name: str, reads: bool) -> Self:
        """Load the weights of option `weights`, the published head that was named, or what ships.

        Raises:
            InvalidOption: an option is unknown or out of range, or there are no weights for this
                network and target.
            RuntimeUnavailable: the runtime gives no features, or runs no networks.
        """
        options = dict(context.options)
        known = ("growth", "stop", "runner_ups", "head", *_LEARNING, *_WIRING)
        given, growth, head = (options.pop(key, None) for key in ("weights", "growth", "head"))
        for key in options:
            if key not in known:
                raise InvalidOption(
                    f"drafter '{name}' has no option {key!r}: use weights, {', '.join(known)}"
                )
        wiring = {key: options.pop(key) for key in _WIRING if key in options}
        learning = {key: options.pop(key) for key in _LEARNING if key in options}
        settings = Learning(**arguments(Learning, "learning", learning))
        if not settings.online and (alone := learning.keys() - {"online"}):
            raise InvalidOption(f"option {min(alone)} goes with online=ROUNDS: add that")
        drawn = growth or context.needs_q
        if head is not None and (drawn or settings.online or "runner_ups" in options):
            raise InvalidOption(
                "option head ends chains of most likely tokens of weights that stay as they are: "
                "leave it out with growth, online or runner_ups, or with a verifier of drawn drafts"
            )
        run = _runs(context, name, reads or bool(settings.online))
        if name == Mtp.name:
            if given or head or settings.online or wiring:
                raise InvalidOption(
                    f"drafter '{name}' is the model's own head, as it is: it has the options "
                    "growth, stop and runner_ups"
                )
            return cls._fixed(_own(context, name), run, context, options)
        published = _published(context, name, given)
        if published is not None:
            if settings.online or head is not None:
                raise InvalidOption(
                    f"{published.path} is a published head, for which there is no option online or "
                    "head: leave them out"
                )
            return cls._of_others(published, wiring, run, context, options)
        if wiring:
            raise InvalidOption(
                f"option {min(wiring)} is for published heads: name one with weights or "
                "--draft-model, or leave it out"
            )
        path = Path(given) if given else shipped(name, context.model)
        trained = fitting(path, name, context.model, context.target)
        predicts = None
        if head is not None:
            check_steps(trained)
            predicts = load_acceptance_head(Path(head), digest_of(path))

        def ready(trained: Trained) -> LoadedNetwork:
            runner = run(trained)
            return LoadedNetwork(runner, TreeDrafts.chosen(context, runner, trained))

        online = None
        if settings.online:
            file = LearntFile(path, settings.save, ships=given is None)
            trained = file.begin(trained)
            learner = find_learner(context, trained, settings)
            online = Online(trained, learner, ready, every=settings.online, file=file)
        return cls(ready(trained), options, trained, predicts, online)

    @classmethod
    def _of_others(
        cls,
        head: Published,
        wiring: Mapping[str, str],
        run: Callable[[Trained], Runner],
        context: DrafterContext,
        options: dict[str, str],
    ) -> Self:
        # What a published head of a fitting shape is made of.
        source, target = context.resources.loaded.source, context.resources.loaded.target
        config = source.config
        if wiring:
            changes = WiringChanges(**arguments(WiringChanges, "published head", wiring))
            head = head.changed(changes, config.layers)
        trained = head.fit(config, source.weights(), context.model)
        places = cast(NetworkTarget, target).read_boundaries(head.boundaries(config.layers))
        first = FirstDrafts(str(head.path), head.made_for, source.name)
        return replace(cls._fixed(trained, run, context, options), places=places, first=first)

    @classmethod
    def _fixed(
        cls,
        trained: Trained,
        run: Callable[[Trained], Runner],
        context: DrafterContext,
        options: dict[str, str],
    ) -> Self:
        # Weights that stay as they are.
        runner = run(trained)
        loaded = LoadedNetwork(runner, TreeDrafts.chosen(context, runner, trained))
        return cls(loaded, options, trained, None, None)

    def stopping_head(self, stop: float) -> AcceptanceStop | None:
        """Return the chain stop of an acceptance head, if any; `stop` counts if the user set it."""
        if self.head is None:
            return None
        stands = stop if "stop" in self.options else MIN_CHAIN_PROB
        return AcceptanceStop(self.head, self.trained.draft_ids, stands)


def _published(context: DrafterContext, name: str, given: str | None) -> Published | None:
    if given:
        found = open_head(Path(given).expanduser())
    else:
        found = context.resources.published if name in DRAFTERS.values() else None
        context.resources.drafted |= found is not None
    if found is not None and name != found.wiring.drafter:
        raise InvalidOption(
            f"{found.path} is of kind {found.wiring.kind}: use --drafter {found.wiring.drafter}"
        )
    if found is None and name in ALONE:
        raise InvalidOption(
            f"drafter '{name}' needs a published drafter: name one with --draft-model, or with "
            f"{name}:weights=PATH"
        )
    return found


def _own(context: DrafterContext, name: str) -> Trained:
    source = context.resources.loaded.source
    found = own_head(source.config, source.weights(), context.model)
    if found is None:
        raise InvalidOption(
            f"{source.name} holds no head for drafter '{name}' (many files are without, `nextn` or "
            "`mtp` in names of tensors): take a file that holds one, or another drafter"
        )
    return found


def _runs(context: DrafterContext, name: str, reads: bool) -> Callable[[Trained], Runner]:
    runs, target = context.target.networks, context.resources.loaded.target
    if not runs or (reads and not context.target.feature_layers):
        what = "gives no hidden states of several layers" if runs else "runs none"
        raise RuntimeUnavailable(
            f"drafter '{name}' is a trained network, and runtime '{context.target.runtime}' "
            f"{what}: use --runtime cpu or torch"
        )
    return cast(NetworkTarget, target).run_network
