"""Set-up of training runs: target, its texts, draft vocabulary; and a drafter's whole training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from paceline.core.expressions import parse
from paceline.core.processor import usable_threads
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.source import ModelSource
from paceline.networks.base import Geometry, Network
from paceline.networks.catalogue import build
from paceline.networks.weights import Trained, load_network, save_network
from paceline.registry import loading
from paceline.registry.options import Options
from paceline.training.batches import FeatureSource, TokenSource, feature_source
from paceline.training.card import write_card
from paceline.training.data import count_tokens, keep_frequent, read_folders
from paceline.training.losses import CrossEntropy, find_loss
from paceline.training.module import share_target_weights
from paceline.training.objective import Hits
from paceline.training.on_policy import OnPolicy
from paceline.training.run import TrainingRun
from paceline.training.trainer import Recipe, Trainer
from paceline.version import __version__


class TrainingSetup:
    """Load a target and the texts that it wrote; build networks and trainers for them.

    Attributes:
        computed: runtime and precision of the features.
        data: settings of the texts.
        counts: int64 `[vocabulary]`, occurrences of each token in answers.
        kept: the draft vocabulary.
    """

    def __init__(
        self,
        data: Sequence[Path],
        asked: Options,
        *,
        vocabulary: int = 0,
        keep_features: Path | None = None,
    ) -> None:
        """Load everything; PyTorch gets as many threads as the runtime.

        Args:
            data: folders of `paceline train data`.
            asked: the target, and where it runs.
            vocabulary: size limit of the draft vocabulary; 0 is all tokens.
            keep_features: folder to cache hidden states in.

        Raises:
            InvalidOption: there are no texts, or another model wrote them.
        """
        if asked.threads is not None:
            torch.set_num_threads(usable_threads(asked.threads))
        self.texts, self.data = read_folders(data)
        loaded = loading.load_model(asked)
        self.source: ModelSource = loaded.source
        check_texts(data[0], self.data, self.source)
        self._target = loaded.target
        capabilities = loaded.target.capabilities
        self.computed = {"runtime": capabilities.runtime, "precision": capabilities.precision}
        self._device = asked.device or "cpu"
        self._weights = self.source.weights()
        self._keep_features = keep_features
        config = self.source.config
        answers = (text.tokens[text.prompt_length :] for text in self.texts)
        self.counts = count_tokens(answers, config.vocab_size)
        size = min(vocabulary or config.vocab_size, config.vocab_size)
        self.kept = keep_frequent(self.counts, size, config.eos_token_ids)

    def network(self, text: str) -> Network:
        """Build a network from NAME:key=value,...; InvalidOption if it is unknown."""
        named = parse(text, "network")
        return build(named.name, Geometry.of(self.source.config), named.options)

    def trainer(
        self,
        network: Network,
        recipe: Recipe,
        *,
        checkpoint_at: Path,
        start: Mapping[str, LogitArray] | None = None,
    ) -> Trainer:
        """Begin a training run, or resume the checkpoint; raises as `Trainer`."""
        config, tensors = self.source.config, self._weights
        embedding = tensors["embed"]
        labels_alone = isinstance(find_loss(recipe.loss), CrossEntropy)
        return Trainer(
            network,
            self.kept,
            embedding,
            embedding if config.tied_embeddings else tensors["head"],
            self.texts,
            self.features(network, teacher=not labels_alone),
            recipe,
            device=self._device,
            checkpoint_at=checkpoint_at,
            target_weights=share_target_weights(network, config, tensors),
            start=start,
            self_drafts=OnPolicy(self._target, self.kept.ids),
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


def check_texts(folder: Path, settings: Mapping[str, str], source: ModelSource) -> None:
    """Raise InvalidOption if the target did not write the texts of a folder."""
    if settings["model"] != source.fingerprint:
        raise InvalidOption(
            f"{folder} was written by another model: write text of {source.name} with "
            "`paceline train data`"
        )


def provenance(
    source: ModelSource, data: Mapping[str, str], run: TrainingRun[Any], command: str
) -> dict[str, str]:
    """Return the metadata of weights that a run has trained on texts of settings `data`."""
    return {
        "model": source.fingerprint,
        "model_name": source.name,
        "command": command,
        "data": json.dumps(data, sort_keys=True),
        "tokens": str(run.tokens),
        "paceline": __version__,
    }


def figures(
    out: Path, run: TrainingRun[Any], recipe: Any, loss: float, hits: Hits
) -> dict[str, Any]:
    """Return what a run with a card reports, JSON-serialisable."""
    return {
        "weights": str(out),
        "finished": run.step >= run.steps,
        "steps": run.step,
        "tokens": run.tokens,
        "held_out": {
            "texts": len(run.held_out),
            "loss": loss,
            "block_efficiency": hits.block_efficiency,
            "acceptance": hits.acceptance,
        },
        "seconds": round(run.course.seconds, 1),
        "tokens_per_second": round(run.course.tokens_per_second, 1),
        "recipe": asdict(recipe),
    }


# Of the provenance of weights that a run starts from, what is noted beside its own.
_KEPT = ("command", "data", "tokens")


def train_drafter(
    setup: TrainingSetup,
    name: str,
    recipe: Recipe,
    out: Path,
    command: str,
    drive: Callable[[TrainingRun[Any]], object],
    start: Path | None = None,
    remark: Callable[[str], object] = lambda _: None,
    stored: str = "F16",
) -> dict[str, Any]:
    """Train a network or go on with it, judge it, and write weights and card; return figures.

    Args:
        name: network with sizes, NAME:key=value,...
        command: for the provenance.
        drive: iterates over the run, to its end or to an interruption, and saves it.
        start: weights to start from.
        remark: is told how much of them fits.
        stored: how the file holds matrices, as `networks.weights.STORED`.

    Raises:
        InvalidOption: an option is out of range, `start` does not fit, or a file is not writable.
        ModelError: the checkpoint is damaged.
    """
    network, kept = setup.network(name), setup.kept
    earlier = None
    if start is not None:
        earlier = _earlier(start, network, setup.source.fingerprint, out)
        if earlier.network.name != network.name:
            fitting = f"{len(earlier.parameters)} of {len(network.shapes())}"
            remark(f"{fitting} tensors are those of {start}")
    run = setup.trainer(
        network,
        recipe,
        checkpoint_at=out.with_suffix(".checkpoint"),
        start=None if earlier is None else earlier.parameters,
    )
    drive(run)
    loss, hits = run.judge()
    run.course.held_out(run.step, loss)
    before = {}
    if earlier is not None:
        command += " --from WEIGHTS"
        kept_keys = [key for key in earlier.metadata if key.split("from_")[-1] in _KEPT]
        before = {f"from_{key}": earlier.metadata[key] for key in kept_keys}
    efficiency = {"block_efficiency": f"{hits.block_efficiency:.4f}"}
    metadata = {**before, **provenance(setup.source, setup.data, run, command), **efficiency}
    if stored != "F16":
        metadata["stored"] = stored
    trained = Trained(network, run.parameters(), kept.ids, metadata)
    save_network(out, trained)
    write_card(
        out,
        run,
        hits,
        drafter=network.name,
        metadata=metadata,
        parameters=sum(array.size for array in trained.parameters.values()),
        settings={**asdict(recipe), "vocabulary": len(kept.ids), "coverage": kept.coverage},
        data=setup.data,
        licence="as the base model's, whose text and features it was trained on",
        conditions="drafts of full depth against texts as they stand, greedy ones and sampled ones",
    )
    run.finish()
    vocabulary = {"size": len(kept.ids), "coverage": kept.coverage}
    return {**figures(out, run, recipe, loss, hits), "vocabulary": vocabulary}


def _earlier(path: Path, network: Network, model: str, out: Path) -> Trained:
    # Weights to start from: of the same network and sizes, or what fits of another network.
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
