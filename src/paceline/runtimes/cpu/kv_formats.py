"""What the CPU plugin is told, and what follows from it for exactness.

Measured, and tested: matrix products give a row the same numbers in a pass of any size at fp32, and
at int8 while activations are quantised too, in whole groups. Otherwise (int4 weights, a processor
without the instructions, narrow models) last bits depend on how many rows a pass has.

Attention reads keys and values back from the cache, those of its own pass as well. So whatever a
cache rounds, it rounds alike in plain and drafted steps, as long as it rounds every row by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core import processor
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.config import ModelConfig
from paceline.native.library import KvDtype
from paceline.runtimes.weights import Precision

_GROUP = 64
"""Activations per dynamic quantisation scale. 32 is more exact (KL against fp32 0.006, not 0.008)
but makes forwards over 8 to 16 rows 7% slower; larger groups gain little more."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How keys and values are kept.

    Attributes:
        dtype: of the numbers in memory.
        kept: its name in our own operations, if they take it.
        extra: numbers that a row of one head has beside its own: scale and zero point.
        lossy: whether rounding is so coarse that texts differ noticeably.
        settings: what the plugin is told.
    """

    dtype: type[np.generic]
    kept: KvDtype | None
    extra: int
    lossy: bool
    settings: Mapping[str, str]


KV_FORMATS = {
    "fp32": KvFormat(np.float32, "fp32", 0, False, {"KV_CACHE_PRECISION": "f32"}),
    "fp16": KvFormat(np.float16, "fp16", 0, False, {"KV_CACHE_PRECISION": "f16"}),
    # numpy has no bf16. In our own operations only.
    "bf16": KvFormat(np.uint16, "bf16", 0, False, {}),
    # The plugin's own choice for keys is a scale per channel of a block: a key would be rounded by
    # what its neighbours are, drafted ones included, and could not be moved.
    "u8": KvFormat(
        np.uint8, None, 8, True, {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"}
    ),
}
"""Precisions of the key-value cache, the most exact first."""


def check_kv_precision(precision: str) -> KvFormat:
    """The format of that name.

    Raises:
        InvalidOption: there is none.
    """
    if precision not in KV_FORMATS:
        raise InvalidOption(
            f"key-value cache precision {precision!r} is unknown: use {', '.join(KV_FORMATS)}"
        )
    return KV_FORMATS[precision]


def check_processor() -> None:
    """Raise RuntimeUnavailable if the processor lacks what attention needs."""
    if not processor.runs("openvino"):
        raise RuntimeUnavailable(
            "this processor has no AVX2, which runtime 'openvino' needs: use --runtime torch"
        )


def quantises_activations(precision: Precision) -> bool:
    """Whether products take int8 activations here; a processor that cannot is named in the log."""
    if precision == "fp32":
        return False
    if not processor.has("AVX2_VNNI"):
        _LOG.warning(
            "this processor has neither AVX-VNNI nor AVX-512: %s weights run with fp32 "
            "activations, slower, and drafts may change last bits of logits",
            precision,
        )
        return False
    return True


def plugin_settings(threads: int, kv: KvFormat, quantised: bool) -> dict[str, Any]:
    """The plugin's properties for compiling."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_GROUP if quantised else 0),
        **kv.settings,
    }


def products_are_exact(config: ModelConfig, precision: Precision, quantised: bool) -> bool:
    """Whether a row's matrix products are the same numbers in a pass of any size."""
    widths = (config.hidden_size, config.heads * config.head_dim, config.ffn_size)
    whole = all(width % _GROUP == 0 for width in widths)
    return precision == "fp32" or (precision == "int8" and quantised and whole)
