"""Matrices of a model for the native kernels: as stored in its file, or at a chosen precision."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.gguf import quantize
from paceline.models.grids import GRIDS, expand
from paceline.models.weights import Stored, Weights
from paceline.native.blocks import GROUP, KINDS, PLAIN, width_of
from paceline.native.library import CMatrix
from paceline.native.packed import LANES, Packed
from paceline.networks.head_preview import SCREEN, Clusters
from paceline.networks.weights import Floats, Trained

# Block format of each precision; "file" keeps what the file has.
PRECISIONS = {"file": None, "int8": "Q8_0", "int4": "Q4_1", "fp32": "F32"}

_LOG = logging.getLogger(__name__)
_PIECES = 16  # in which some rows of a matrix are read


def check_precision(precision: str) -> str:
    """Return `precision`; raise InvalidOption if it is unknown."""
    if precision not in PRECISIONS:
        raise InvalidOption(f"precision {precision!r} is unknown: use {', '.join(PRECISIONS)}")
    return precision


class Formats:
    """Matrices and vectors of a model by canonical name, in the formats that they run in."""

    def __init__(self, weights: Weights, precision: str) -> None:
        self._weights = weights
        self._kind = PRECISIONS[precision]
        self._told: set[str] = set()

    def vector(self, name: str) -> LogitArray | None:
        """Return a tensor as float32, or None if the model has none of that name."""
        return self._weights[name] if name in self._weights else None  # noqa: SIM401

    def required(self, name: str) -> LogitArray:
        """Return a tensor as float32; ModelError if the model has none of that name."""
        found = self.vector(name)
        if found is None:
            raise ModelError(f"the model has no tensor {name}: download it again")
        return found

    def bias(self, name: str) -> LogitArray | None:
        """Return what is added to the results of a matrix, if anything."""
        return self.vector(f"{name}.bias")

    def in_file(self, name: str) -> bool:
        """Return whether rows of a table are read from the file, and not from a matrix."""
        return name != "embed"

    def table_rows(self, name: str, ids: IntArray) -> LogitArray:
        """Return some rows of a table, with the numbers of the file; the others are not read."""
        return self._weights.stored(name).rows(ids)

    def table_width(self, name: str) -> int:
        """Return how many numbers a row of a table has."""
        return self._weights.stored(name).shape[1]

    def parts(self, names: Sequence[str], *, pair: bool = False) -> list[str]:
        """Return the matrices that stand behind names: those themselves."""
        return list(names)

    def quantized(self, name: str) -> bool:
        """Return whether a matrix takes quantized activations."""
        return self._format(self._resolved(name)) not in PLAIN

    def _resolved(self, name: str) -> str:
        return "embed" if name == "head" and name not in self._weights else name

    def _format(self, name: str) -> str:
        stored = self._weights.stored(name)
        kind = self._kind or stored.kind
        if self._kind == "Q4_1" and name in ("embed", "head"):
            kind = "Q8_0"  # they decide the argmax
        if self._kind and name.endswith((".router", ".delta_a", ".delta_b", ".ssm_steps")):
            kind = "F32"  # so small, and it decides which experts are read, or what is kept
        if stored.kind == "MXFP4" and self._kind in ("Q8_0", "Q4_1"):
            kind = stored.kind  # fewer bits than asked for, and the very numbers
        if kind not in KINDS:
            run = "I8_K" if kind in GRIDS else "F32"
            if kind not in self._told:
                self._told.add(kind)
                said = "codes of eight bits, exactly the same numbers" if run == "I8_K" else "fp32"
                _LOG.warning("weights of type %s take more memory than the file: %s", kind, said)
            kind = run
        return kind if stored.shape[1] % width_of(kind) == 0 else "F32"

    def blocks(
        self, name: str, rows: npt.NDArray[np.int64] | None = None
    ) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the format of a matrix, and its rows, or some of them, as blocks of it."""
        name = self._resolved(name)
        stored, kind = self._weights.stored(name), self._format(name)
        some = slice(None) if rows is None else rows
        order = some if stored.order is None else stored.order[some]
        own = self._own_blocks(stored, kind, order)
        return kind, self._quantised(kind, name, some) if own is None else own

    def _quantised(
        self, kind: str, name: str, rows: slice | npt.NDArray[np.int64] = slice(None)
    ) -> npt.NDArray[np.uint8]:
        values = self._weights[name][rows]
        if kind != "F32" and not np.isfinite(values).all():
            raise ModelError(f"tensor {name} holds NaN or infinity: download the model again")
        return quantize(kind, values)

    def _own_blocks(
        self, stored: Stored, kind: str, rows: slice | npt.NDArray[np.int64] = slice(None)
    ) -> npt.NDArray[np.uint8] | None:
        # Rows of the file in a format that says exactly what they say there; None if it does not.
        if kind == stored.kind:
            return stored.blocks[rows]
        if kind == "I8_K" and stored.kind in GRIDS:
            return expand(stored.kind, stored.blocks[rows])
        return None


class Matrices(Formats):
    """Packed matrices."""

    previews = False  # no head preview

    def __init__(self, weights: Weights, precision: str, packed: Packed, threads: int) -> None:
        super().__init__(weights, precision)
        self._packed = packed
        self._threads = threads
        self._matrices: dict[str, CMatrix] = {}

    def __call__(self, name: str) -> CMatrix:
        """Return a matrix, packed on first use.

        Raises:
            MemoryError: no memory for it.
            ModelError: it is damaged, or its width does not fit the kernels.
        """
        if name not in self._matrices:
            name = self._resolved(name)
        if name not in self._matrices:
            self._matrices[name] = self._pack(name)
        return self._matrices[name]

    def of(self, names: Sequence[str], *, pair: bool = False) -> list[CMatrix]:
        """Return matrices, packed on first use; errors are those of a call."""
        return [self(each) for each in self.parts(names, pair=pair)]

    def trim_head(self, ids: npt.NDArray[np.int64]) -> None:
        """Let the LM head have these rows alone."""
        self._matrices["head"] = self.rows("head", ids)

    def _pack(self, name: str) -> CMatrix:
        stored, kind = self._weights.stored(name), self._format(name)
        inputs = stored.shape[1]
        if inputs % GROUP:
            raise ModelError(
                f"tensor {name} has {inputs} columns, which are no multiple of {GROUP}: "
                "use --runtime torch"
            )
        own = self._own_blocks(stored, kind)
        made = self._packed.matrix(
            kind,
            self._quantised(kind, name) if own is None else own,
            inputs,
            order=None if own is None else stored.order,
            bias=self.bias(name),
            threads=self._threads,
        )
        stored.forget()
        return made

    def rows(self, name: str, rows: npt.NDArray[np.int64]) -> CMatrix:
        """Return some rows of a matrix, in its own format; the whole matrix if they are all."""
        stored = self._weights.stored(self._resolved(name))
        if len(rows) == stored.shape[0]:
            return self(name)
        # A piece at a time: pages of the file that rows lie in are many times the rows.
        exact = self._own_blocks(stored, self._format(self._resolved(name)), rows[:1]) is not None
        found = []
        for each in np.array_split(rows, _PIECES) if exact else [rows]:
            kind, blocks = self.blocks(name, each)
            found.append(blocks)
            stored.forget()
        return self._packed.matrix(
            kind, np.concatenate(found), stored.shape[1], threads=self._threads
        )


# Parts of the names of feed-forward matrices, which are int4: drafters read few weights often.
_NARROW = {"gate_up", "gate", "up", "down"}

# Behind the name of a matrix that holds a gate and what it gates, for one of them.
_HALVES = ("/gate", "/up")


class NetworkFormats:
    """Matrices and vectors by a network's names; those that it has not are the target's.

    "head" of the target has the rows of the draft vocabulary.
    """

    def __init__(self, trained: Trained, target: Formats, precision: str) -> None:
        """Bind them; `precision` "fp32" keeps parameters as they are, any other makes int8 or int4.

        Raises:
            InvalidOption: the target lacks layers whose weights the network shares.
        """
        self._trained, self._target = trained, target
        self._exact = precision == "fp32"
        for theirs in trained.network.target_weights():
            if theirs.endswith("norm") and target.vector(theirs) is None:
                raise InvalidOption(
                    f"network '{trained.network.name}' runs layers of its target that are not "
                    "there: use weights that were trained for this model"
                )

    def required(self, name: str) -> LogitArray:
        """Return a norm's weights, or another parameter that is no matrix, as float32."""
        own = self._trained.parameters
        return own[name] if name in own else self._target.required(name)

    def bias(self, part: str) -> LogitArray | None:
        """Return what is added to the results of a part, if anything."""
        if not self._own(part):
            return self._target.bias(part)
        return self._trained.parameters.get(f"{part}.bias")

    def in_file(self, name: str) -> bool:
        """Return whether a table is the target's, and no embedding."""
        return self._target.in_file(name) and not self._own(name)

    def table_rows(self, name: str, ids: IntArray) -> LogitArray:
        """Return some rows of a table of the target, with the numbers of its file."""
        return self._target.table_rows(name, ids)

    def table_width(self, name: str) -> int:
        """Return how many numbers a row of such a table has."""
        return self._target.table_width(name)

    def parts(self, names: Sequence[str], *, pair: bool = False) -> list[str]:
        """Return the matrices that stand behind names; as a `pair`, a gate and what it gates."""
        halves = _HALVES if pair and len(names) == 1 else ("",)
        return [f"{name}{half}" for name in names for half in halves]

    def quantized(self, part: str) -> bool:
        """Return whether a matrix takes quantized activations."""
        return self._kind(part) not in PLAIN if self._own(part) else self._target.quantized(part)

    def blocks(self, part: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the format of a matrix, and its rows as blocks of it."""
        if not self._own(part):
            return self._target.blocks(part, self._trained.draft_ids if part == "head" else None)
        kind, parameters = self._kind(part), self._trained.parameters
        if part not in SCREEN and isinstance(parameters, Floats):
            name, _, half = part.partition("/")
            whole = parameters.blocks(name, kind)
            if whole is not None:
                return kind, np.split(whole, 2)[half == "up"] if half else whole
        return kind, quantize(kind, np.ascontiguousarray(self._matrix(part), dtype=np.float32))

    def _own(self, part: str) -> bool:
        return part in SCREEN or part.partition("/")[0] in self._trained.parameters

    def _kind(self, part: str) -> str:
        if self._exact:
            return "F32"
        names = part.partition("/")[0].split(".")
        narrow = part == SCREEN[1] or (part != SCREEN[0] and not _NARROW.isdisjoint(names))
        return "Q4_0" if narrow else "Q8_0"

    def _matrix(self, part: str) -> LogitArray:
        if part in SCREEN:
            preview = self._trained.head_preview
            assert preview is not None
            more = -preview.up.shape[1] % GROUP  # of the rank, to whole groups
            if part == SCREEN[0]:
                return np.pad(preview.down, ((0, more), (0, 0)))
            return np.pad(preview.up, ((0, 0), (0, more)))
        name, _, half = part.partition("/")
        whole = self._trained.parameters[name]
        return np.split(whole, 2)[half == "up"] if half else whole


class NetworkMatrices(NetworkFormats):
    """Packed matrices of a network; its errors are those of `NetworkFormats`."""

    def __init__(self, trained: Trained, target: Matrices, precision: str, packed: Packed) -> None:
        super().__init__(trained, target, precision)
        self._lent, self._packed = target, packed
        self._known: dict[str, CMatrix] = {}

    @property
    def clusters(self) -> Clusters | None:
        return self._trained.clusters

    @property
    def previews(self) -> bool:
        """Return whether chains need not read the whole LM head."""
        return self._trained.head_preview is not None or self.clusters is not None

    def head_by_cluster(self, clusters: Clusters) -> CMatrix:
        """Return the LM head, packed: rows of a cluster behind another's, each in whole tiles."""
        more = -clusters.tokens.shape[1] % LANES
        order = np.pad(clusters.tokens, ((0, 0), (0, more)), mode="edge").ravel()
        width = self._matrix("head").shape[1]
        return self._packed.matrix(*self.blocks("head"), width, order=order)

    def of(self, names: Sequence[str], *, pair: bool = False) -> list[CMatrix]:
        """Return matrices, packed on first use; as a `pair`, a gate and what it gates."""
        parts = self.parts(names, pair=pair)
        for each in parts:
            if each not in self._known:
                self._known[each] = self._pack(each)
        return [self._known[each] for each in parts]

    def _pack(self, part: str) -> CMatrix:
        if not self._own(part):
            if part == "head":
                return self._lent.rows(part, self._trained.draft_ids)
            return self._lent(part)
        if isinstance(self._trained.parameters, Floats) and part not in SCREEN:
            inputs = self._trained.network.shapes()[part.partition("/")[0]][1]
        else:
            inputs = self._matrix(part).shape[1]
        if inputs % GROUP:
            raise InvalidOption(
                f"a matrix of network '{self._trained.network.name}' has {inputs} columns, no "
                f"multiple of {GROUP}: use --runtime torch"
            )
        return self._packed.matrix(*self.blocks(part), inputs, bias=self.bias(part))
