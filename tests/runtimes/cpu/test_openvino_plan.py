"""What the CPU runtime decides of what it is asked, with and without native kernels."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtimes import tiny_openvino

from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.runtimes.cpu import plan as openvino_plan
from paceline.runtimes.cpu.kv_formats import KV_FORMATS
from paceline.runtimes.cpu.plan import KV_TOKENS, PREFIX_TOKENS, Plan, plan
from paceline.runtimes.kv_cache import BLOCK


@pytest.fixture(params=[True, False], ids=["native", "plugin"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether native kernels take the model; the processor can do the rest."""
    monkeypatch.setattr(openvino_plan, "takes", lambda *_: request.param)
    monkeypatch.setattr(openvino_plan, "check_processor", lambda: None)
    monkeypatch.setattr(openvino_plan, "quantises_activations", lambda p: p != "fp32")
    monkeypatch.setattr(openvino_plan, "products_are_exact", lambda _, p, __: p != "int4")
    return bool(request.param)


def made(precision: Any = "int8", **options: Any) -> Plan:
    return plan(tiny_openvino.config(), {}, precision, **options)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_the_default_cache_is_coarser_only_where_we_run_int8(
    native: bool, precision: str, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_plan, "has_bf16_dot", lambda: pairs)
    chosen = made(precision)
    half = "bf16" if pairs else "fp16"
    name = half if native and precision == "int8" else "fp32"
    assert (chosen.native, chosen.kv_precision, chosen.kv) == (native, name, KV_FORMATS[name])
    assert (chosen.kv_tokens, chosen.keep) == (KV_TOKENS, PREFIX_TOKENS // BLOCK)
    assert made(precision, kv_precision="fp32").kv_precision == "fp32"


@pytest.mark.parametrize(
    ("precision", "options", "shared"),
    [
        ("int8", {}, (True, True)),
        ("int4", {}, (False, False)),
        ("int8", {"layout": "masked"}, (False, False)),
        ("int8", {"kv_precision": "fp16"}, (True, False)),
        ("int8", {"attention": "plugin"}, (True, True)),
        ("int8", {"attention": "plugin", "kv_precision": "fp16"}, (False, False)),
        ("int8", {"prefix_tokens": 0}, (False, False)),
    ],
)
def test_prefixes_are_kept_where_rows_are_those_of_any_batch(
    native: bool, precision: str, options: dict[str, Any], shared: tuple[bool, bool]
) -> None:
    """With native kernels, and with the plugin's."""
    assert bool(made(precision, **options).keep) is shared[0 if native else 1]


def test_a_cache_holds_whole_blocks() -> None:
    chosen = made("fp32", kv_tokens=3 * BLOCK + 1, attention="plugin")
    assert (chosen.kv_tokens, chosen.blocks, chosen.capacity) == (3 * BLOCK + 1, 3, 3 * BLOCK)


def test_own_operations_that_cannot_be_had_are_an_error(native: bool) -> None:
    if native:
        assert made(attention="paths").native
    else:
        with pytest.raises(RuntimeUnavailable, match="'paths' needs"):
            made(attention="paths")
    with pytest.raises(RuntimeUnavailable, match="'paths' needs"):
        made(attention="paths", layout="masked")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "round"}, "layout 'round' is unknown"),
        ({"attention": "none"}, "attention 'none' is unknown"),
        ({"kv_precision": "u4"}, "precision 'u4' is unknown"),
        ({"kv_tokens": 2 * BLOCK - 1}, "kv_tokens must be"),
        ({"prefix_tokens": -1}, "prefix_tokens 0 or more"),
    ],
)
def test_what_cannot_be_is_named(native: bool, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        made(**options)
