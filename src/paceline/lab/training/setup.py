"""Set-up of training beside a loaded target: its texts, draft vocabulary, features, drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from paceline.core.expressions import parse
from paceline.core.processor import usable_threads
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.lab.training.batches import FeatureSource, TokenSource, feature_source
from paceline.lab.training.card import Teacher
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.losses import CrossEntropy, find_loss
from paceline.lab.training.module import share_target_weights
from paceline.lab.training.on_policy import OnPolicy
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.vocabulary import count_tokens, keep_frequent
from paceline.networks.base import Network
from paceline.networks.catalogue import build
from paceline.networks.weights import Trained, load_network
from paceline.registry import loading
from paceline.registry.options import Options


def use_threads(threads: int | None) -> None:
    """Let PyTorch compute with so many threads, those of the runtime; None leaves it alone."""
    if threads is not None:
        torch.set_num_threads(usable_threads(threads))


class TrainingSetup:
    """A loaded target and the texts that it wrote."""

    def __init__(
        self, data: Sequence[Path], asked: Options, *, keep_features: Path | None = None
    ) -> None:
        """Load everything.

        Args:
            data: folders of `paceline train data`.
            asked: the target, and where it runs.
            keep_features: folder to cache hidden states in.

        Raises:
            InvalidOption: there are no texts, or another model wrote them.
        """
        use_threads(asked.threads)
        loaded = loading.load_model(asked)
        self.source, self._target = loaded.source, loaded.target
        self.teacher = Teacher.of(data, loaded.source)
        self._device = asked.device or "cpu"
        self._keep_features = keep_features

    def network(self, text: str) -> Network:
        """Build a network from NAME:key=value,...; InvalidOption if unknown, or of sounds."""
        named = parse(text, "network")
        network = build(named.name, self.source.config, named.options)
        if network.trained_by != Network.trained_by:
            raise InvalidOption(
                f"network '{named.name}' does not learn from texts alone: use "
                f"`{network.trained_by} {named.name}`"
            )
        return network

    def drafter(
        self,
        network: Network,
        recipe: DrafterRecipe,
        vocabulary: int,
        start: Mapping[str, LogitArray],
    ) -> DrafterTask:
        """Return the task of a network; errors and `start` as of `DrafterTask`.

        `vocabulary` is the size limit of the draft vocabulary; 0 is all tokens.
        """
        config, weights = self.source.config, self.source.weights()
        answers = (each.tokens[each.prompt_length :] for each in self.teacher.texts)
        counts = count_tokens(answers, config.vocab_size)
        size = min(vocabulary or config.vocab_size, config.vocab_size)
        kept = keep_frequent(counts, size, config.eos_token_ids)
        embedding = weights["embed"]
        labels_alone = isinstance(find_loss(recipe.loss), CrossEntropy)
        return DrafterTask(
            network,
            kept,
            embedding,
            embedding if config.tied_embeddings else weights["head"],
            self.teacher.texts,
            self.features(network, teacher=not labels_alone),
            recipe,
            device=self._device,
            target_weights=share_target_weights(network, config, weights),
            start=start,
            self_drafts=OnPolicy(self._target, kept.ids),
        )

    def features(self, network: Network, *, teacher: bool = False) -> FeatureSource:
        """Return what a network reads, and the `teacher`'s hidden states if they are wanted.

        Raises:
            InvalidOption: that is features, and the target's runtime gives none.
        """
        if not network.reads_features and not teacher:
            return TokenSource(self.source.config.hidden_size)
        return feature_source(self._target, self._keep_features)

    def restored(self, path: Path) -> Trained:
        """Load a trained network; InvalidOption unless it was trained for the target."""
        trained = load_network(path)
        if trained.metadata.get("model") != self.source.fingerprint:
            raise InvalidOption(f"{path} is of another model: name its own with --model")
        return trained


def fitting(path: Path, network: Network, model: str, out: Path) -> Trained:
    """Load weights to start from: of the same network and sizes, or what fits of another network.

    Raises:
        InvalidOption: they are for another model than `model`, lie at `out`, or nothing fits.
    """
    found = load_network(path)
    if out.exists() and out.samefile(path):
        raise InvalidOption(f"--from and --out are both {path}: give another --out")
    if found.metadata.get("model") != model:
        raise InvalidOption(f"{path} was trained for another model: begin without --from")
    wanted = network.shapes()
    same = found.network.name == network.name
    if same and found.network.shapes() == wanted:
        return found
    fitting = {
        name: each for name, each in found.parameters.items() if wanted.get(name) == each.shape
    }
    # Sizes of one network that differ are a slip; and norms alone are no start.
    if same or not any(each.ndim > 1 for each in fitting.values()):
        raise InvalidOption(
            f"{path} holds network '{found.network.name}' with settings "
            f"{found.network.settings()}, which '{network.name}' with {network.settings()} cannot "
            "start from: name the same network and sizes, or one that shares layers"
        )
    return replace(found, parameters=fitting)
