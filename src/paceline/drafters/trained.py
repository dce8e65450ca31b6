"""Drafts with a trained network.

The network sees every committed token, most of them with the features that the target computed for
it, and drafts a chain behind the last one in a single call, or a tree (`grown.py`). One class
serves all networks: what they compute is theirs (`paceline.networks`), what runs them is the
runtime's.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.grown import TreeDrafts
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.networks.catalogue import build
from paceline.networks.runner import Grown, Runner
from paceline.networks.weights import Trained, load_network
from paceline.options import arguments, require
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, LogitArray, Needs, ProbArray, TokenTree, Verdict

_SHIPPED = "paceline.weights"


@dataclass(slots=True)
class _Progress:
    """A sequence's cache in the network, and the rows that are not in it yet.

    `features[i]` belong to the position before `tokens[i]`; they have no width if none are read.
    """

    cache: Any
    features: list[LogitArray]
    tokens: list[int]


class TrainedDrafter(Drafter):
    """Drafts with one network; a subclass names it."""

    needs: Needs = Needs(features=True)
    sizes: ClassVar[tuple[str, ...]] = ()
    """Settings of the network that may be smaller than those of its weights."""

    def __init__(self, runner: Runner, *, stop: float = 0.0) -> None:
        """Bind a network that is ready to run.

        Args:
            runner: the network.
            stop: a chain ends before the first token whose probability, the greatest in the
                network's law there, is below this (the second early exit of Kangaroo). The law is
                known before a token is chosen, so any verifier may be told; 0 never stops.

        Raises:
            InvalidOption: `stop` is out of range.
        """
        require(0 <= stop < 1, "stop", stop, "0 or more, and below 1")
        self._runner = runner
        self._stop = stop
        self._progress: dict[int, _Progress] = {}
        self._trees: TreeDrafts | None = None

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the weights of option `weights`, or those that ship for the target.

        Raises:
            InvalidOption: an option is unknown or out of range, or there are no weights for this
                network and target.
            RuntimeUnavailable: the runtime gives no features, or runs no networks.
        """
        options = dict(context.options)
        given = options.pop("weights", None)
        for key in options:
            if key not in (known := ("growth", "stop", *cls.sizes)):
                raise InvalidOption(
                    f"drafter '{cls.name}' has no option {key!r}: use weights, {', '.join(known)}"
                )
        target = context.target
        if (cls.needs.features and not target.feature_layers) or context.run_network is None:
            what = (
                "gives no hidden states of several layers" if context.run_network else "runs none"
            )
            raise RuntimeUnavailable(
                f"drafter '{cls.name}' is a trained network, and runtime '{target.runtime}' "
                f"{what}: use --runtime openvino or torch"
            )
        path = Path(given) if given else shipped(cls.name, context.model)
        chosen = {key: options.pop(key) for key in cls.sizes if key in options}
        trained = resized(load_network(path), chosen)
        if trained.network.name != cls.name:
            raise InvalidOption(
                f"{path} holds network '{trained.network.name}': use --drafter "
                f"{trained.network.name}:weights={path}"
            )
        shape = trained.network.geometry
        fits = (shape.vocab_size, shape.width) == (target.vocab_size, target.hidden_size)
        if trained.metadata.get("model") != context.model or not fits:
            raise InvalidOption(
                f"{path} was trained for another model: train one with `paceline train drafter "
                f"{cls.name}`"
            )
        options.pop("growth", None)
        runner = context.run_network(trained)
        drafter = cls(runner, **arguments(cls, "drafter", options, "runner"))
        drafter.grow_by(TreeDrafts.chosen(context, runner, trained))
        return drafter

    def grow_by(self, trees: TreeDrafts | None) -> None:
        """Draft trees, or chains of the likeliest tokens if None."""
        self._trees = trees
        self.kind = None if trees is None else trees.kind

    def open(self, sequence: Sequence) -> None:
        """Open the network's cache; without features, all tokens can be read at once."""
        self._progress[sequence.id] = _Progress(self._runner.open(), [], [])
        if not self.needs.features:
            self._take_in(sequence, sequence.tokens, _no_features(len(sequence.tokens)))

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        """Take the prompt in; features stand before all tokens but the first."""
        self._take_in(sequence, sequence.tokens[1:], features)

    def _take_in(self, sequence: Sequence, tokens: list[int], features: LogitArray) -> None:
        """All rows but the last, which the first draft starts behind."""
        progress = self._progress[sequence.id]
        if len(tokens) > 1:
            self._runner.draft([Grown(progress.cache, features[:-1], tokens[:-1])], 0)
        progress.features, progress.tokens = [features[-1:]], tokens[-1:]

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """A draft for every sequence that has a budget; chains take one run of the network."""
        drafts = [trees.EMPTY] * len(sequences)
        wanted = [min(b.nodes, b.depth, self._runner.depth) for b in budgets]
        asking = [
            index
            for index, sequence in enumerate(sequences)
            if wanted[index] and self._progress[sequence.id].tokens
        ]
        if not asking:
            return drafts
        progress = [self._progress[sequences[index].id] for index in asking]
        grown = [Grown(p.cache, np.concatenate(p.features), p.tokens) for p in progress]
        if self._trees is None:
            drafted = self._chains(grown, [wanted[index] for index in asking])
        else:
            parts = [sequences[index] for index in asking], [budgets[index] for index in asking]
            drafted = self._trees.grow(*parts, grown)
        for each in progress:
            each.features, each.tokens = [], []
        for index, draft in zip(asking, drafted, strict=True):
            drafts[index] = replace(draft, source=self.name)
        return drafts

    def _chains(self, grown: List[Grown], wanted: List[int]) -> list[TokenTree]:
        """Chains of at most so many tokens each."""
        drafts = []
        for drafted, most in zip(self._runner.draft(grown, max(wanted)), wanted, strict=True):
            unsure = np.flatnonzero(drafted.chances < self._stop)
            kept = min(most, *unsure[:1].tolist(), len(drafted.tokens))
            scores: ProbArray = np.cumprod(drafted.chances[:kept], dtype=np.float64)
            drafts.append(replace(trees.chain(drafted.tokens[:kept].tolist()), scores=scores))
        return drafts

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Note the rows that were committed; they are taken in with the next draft."""
        for sequence, verdict, output in zip(sequences, verdicts, outputs, strict=True):
            rows = [0, *(node + 1 for node in verdict.path)]
            progress = self._progress[sequence.id]
            progress.tokens += sequence.tokens[-len(rows) :]
            if self.needs.features:
                assert output.features is not None
                progress.features.append(output.features[rows])
            else:
                progress.features.append(_no_features(len(rows)))

    def close(self, sequence: Sequence) -> None:
        """Release the network's cache."""
        progress = self._progress.pop(sequence.id, None)
        if progress is not None:
            self._runner.release(progress.cache)


def _no_features(rows: int) -> LogitArray:
    """What stands for features where none are read."""
    return np.zeros((rows, 0), dtype=np.float32)


def resized(trained: Trained, sizes: Mapping[str, str]) -> Trained:
    """A network cut to other sizes, as text, which its weights must hold.

    Raises:
        InvalidOption: there is no such size, or the weights are of a smaller network.
    """
    if not sizes:
        return trained
    whole = trained.network
    network = build(whole.name, whole.geometry, {**whole.settings(), **sizes})
    shapes = {name: array.shape for name, array in trained.parameters.items()}
    if not network.shapes().items() <= shapes.items():
        raise InvalidOption(
            f"the weights of drafter '{whole.name}' hold {whole.settings()}, which is less than "
            f"{dict(sizes)}: choose smaller sizes"
        )
    parameters = {name: trained.parameters[name] for name in network.shapes()}
    return replace(trained, network=network, parameters=parameters)


def shipped(name: str, model: str) -> Path:
    """The weights that ship for a network and a target.

    Raises:
        InvalidOption: there are none.
    """
    with as_file(files(_SHIPPED)) as folder:
        for path in sorted(folder.glob(f"{name}-*.safetensors")):
            if load_network(path).metadata.get("model") == model:
                return path
    raise InvalidOption(
        f"no weights ship for drafter '{name}' and this model: train some with `paceline train "
        f"drafter {name}`, and name them with {name}:weights=FILE"
    )


class MedusaDrafter(TrainedDrafter):
    """Medusa heads."""

    name: ClassVar[str] = "medusa"


class HydraDrafter(TrainedDrafter):
    """Hydra heads."""

    name: ClassVar[str] = "hydra"


class CloverDrafter(TrainedDrafter):
    """Clover's attention decoder."""

    name: ClassVar[str] = "clover"


class EagleDrafter(TrainedDrafter):
    """EAGLE-1 and EAGLE-2."""

    name: ClassVar[str] = "eagle"


class Eagle3Drafter(TrainedDrafter):
    """EAGLE-3."""

    name: ClassVar[str] = "eagle3"


class ChimeraDrafter(TrainedDrafter):
    """Chimera's trigrams and layer."""

    name: ClassVar[str] = "chimera"


class FalconDrafter(TrainedDrafter):
    """Falcon, a block of tokens per step."""

    name: ClassVar[str] = "falcon"


class CTCDrafter(TrainedDrafter):
    """Slots that may stay blank."""

    name: ClassVar[str] = "ctc"


class SpecFormerDrafter(TrainedDrafter):
    """SpecFormer's slots."""

    name: ClassVar[str] = "specformer"


class BlockParallelDrafter(TrainedDrafter):
    """A block of tokens in one pass."""

    name: ClassVar[str] = "block-parallel"


class S2DDrafter(TrainedDrafter):
    """Nested drafts; option `layers` cuts the network at a shallower exit."""

    name: ClassVar[str] = "s2d"
    sizes: ClassVar[tuple[str, ...]] = ("layers",)


class LongSpecDrafter(TrainedDrafter):
    """A drafter whose cache does not grow."""

    name: ClassVar[str] = "longspec"


class DraftLMDrafter(TrainedDrafter):
    """A small language model of its own."""

    name: ClassVar[str] = "draft-lm"
    needs: Needs = Needs()


class KangarooDrafter(TrainedDrafter):
    """The target's first layers and an adapter; `stop` is the paper's unless it is given."""

    name: ClassVar[str] = "kangaroo"
    needs: Needs = Needs()

    def __init__(self, runner: Runner, *, stop: float = 0.6) -> None:
        """Arguments as for all."""
        super().__init__(runner, stop=stop)
