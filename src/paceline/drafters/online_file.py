"""Storage of online-distilled weights: a file beside the weights that learning began with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic

from paceline.drafters.trained_weights import digest_of
from paceline.errors import InvalidOption
from paceline.models.cache import cache_dir
from paceline.networks.weights import Trained, load_network, save_network

_LOG = logging.getLogger(__name__)

_SUFFIX = ".online.safetensors"

# Between two writes: a kill loses at most that.
_SECONDS = 60.0

# Metadata: digest of the weights that learning began with.
_ORIGIN = "online_of"


class LearntFile:
    """Hold the newest weights, and write them now and then."""

    def __init__(self, origin: Path, chosen: str, *, ships: bool) -> None:
        """Choose the path: `chosen`, or beside `origin`, or in the cache if the origin `ships`.

        Raises:
            InvalidOption: the file would overwrite the origin.
        """
        self._origin = origin
        if chosen:
            self.path = Path(chosen)
        else:
            folder = cache_dir() / "online" if ships else origin.parent
            self.path = folder / (origin.name.removesuffix(".safetensors") + _SUFFIX)
        if self.path.exists() and self.path.samefile(origin):
            raise InvalidOption(f"save would write over the weights {origin}: name another file")
        self._unsaved: Trained | None = None
        self._written = monotonic()

    def begin(self, trained: Trained, sizes: Mapping[str, str]) -> Trained:
        """Return the weights to go on from: the file's, or the origin's, `trained`, cut to `sizes`.

        Raises:
            InvalidOption: the file is damaged, or was learnt from other weights.
        """
        origin = digest_of(self._origin, sizes)
        if not self.path.exists():
            return replace(trained, metadata={**trained.metadata, _ORIGIN: origin})
        learnt = load_network(self.path)
        if learnt.metadata.get(_ORIGIN) != origin:
            raise InvalidOption(
                f"{self.path} was learnt from other weights than {self._origin}: move it away, or "
                "name another file with save=FILE"
            )
        return learnt

    def keep(self, trained: Trained) -> None:
        """Hold the newest weights; write them if the last write is a while ago."""
        self._unsaved = trained
        if monotonic() - self._written >= _SECONDS:
            self.save()

    def save(self) -> None:
        """Write what is not written yet. A failure is logged: decoding goes on."""
        trained, self._unsaved = self._unsaved, None
        if trained is None:
            return
        self._written = monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_network(self.path, trained)
        except (OSError, InvalidOption) as error:
            _LOG.warning("what the drafter learnt is not saved: %s", error)
