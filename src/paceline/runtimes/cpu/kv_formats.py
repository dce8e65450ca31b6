"""Key-value formats and activation quantization of the CPU runtime, and their exactness.

Tested: fp32 matmuls, and int8 matmuls with quantized activations in whole groups, do not depend
on the rows of a pass; others may differ in last bits. Attention reads every key back from the
cache, so rounding per row is the same in plain and drafted steps.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from paceline.core import processor
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.config import ModelConfig
from paceline.native.library import KvDtype
from paceline.runtimes.weights import Precision

# Activations per dynamic quantization scale: smaller groups are more exact but slower on wide
# forwards, larger ones gain little more.
GROUP = 64

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Storage format of keys and values (kv dtype).

    Attributes:
        dtype: of the numbers in memory.
        kv_dtype: its name in the native kernels, if they support it.
        extra: numbers per row and head beside its own: scale and zero point.
        lossy: rounding is coarse enough to change texts noticeably.
    """

    dtype: type[np.generic]
    kv_dtype: KvDtype | None
    extra: int
    lossy: bool


# Key-value cache precisions, the most exact first.
KV_FORMATS = {
    "fp32": KvFormat(np.float32, "fp32", 0, False),
    "fp16": KvFormat(np.float16, "fp16", 0, False),
    "bf16": KvFormat(np.uint16, "bf16", 0, False),  # numpy has no bf16; native kernels only
    "u8": KvFormat(np.uint8, None, 8, True),  # plugin only
}


def check_kv_precision(precision: str) -> KvFormat:
    """Return the format of that name.

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
    """Return whether matmuls take int8 activations here; log a warning if the processor cannot."""
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


def products_are_exact(config: ModelConfig, precision: Precision, quantised: bool) -> bool:
    """Return whether a row's matmuls are bit-identical in a pass of any size."""
    widths = (config.hidden_size, config.heads * config.head_dim, config.ffn_size)
    whole = all(width % GROUP == 0 for width in widths)
    return precision == "fp32" or (precision == "int8" and quantised and whole)
