"""How models of the transformers library are read, and made of our own readers' weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from paceline.errors import ModelError
from paceline.models.config import ModelConfig, inverse_frequencies
from paceline.models.source import ModelSource
from paceline.models.weights import Weights


def load(source: ModelSource, dtype: torch.dtype) -> Any:
    """The library's model of a source, on the CPU.

    Raises:
        OSError, ValueError, KeyError, ImportError, RuntimeError: the library cannot read it.
        ModelError: its weights are damaged.
    """
    auto = transformers.AutoModelForCausalLM
    if not source.path.is_file():
        return auto.from_pretrained(str(source.path), dtype=dtype, local_files_only=True)
    try:
        config = source.config
    except ModelError:  # of a family that paceline does not know, but transformers may
        folder, name = str(source.path.parent), source.path.name
        return auto.from_pretrained(folder, gguf_file=name, dtype=dtype)
    # The library's own reader takes many times longer, and needs the package accelerate.
    return _from_weights(config, source.weights(), dtype)


def _from_weights(config: ModelConfig, weights: Weights, dtype: torch.dtype) -> Any:
    """The library's model for a Llama-family shape and weights."""
    theirs = transformers.AutoConfig.for_model(
        config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.ffn_size,
        max_position_embeddings=config.max_context,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=config.tied_embeddings,
        attention_bias=config.qkv_bias,
        sliding_window=None,
    )
    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)]
    with torch.device("meta"):
        names = list(kind(theirs).state_dict())
    state = {
        name: torch.from_numpy(weights[name])
        for name in names
        if not (config.tied_embeddings and name == "lm_head.weight")
    }
    model = kind.from_pretrained(None, config=theirs, state_dict=state, dtype=dtype)
    model.model.rotary_emb.inv_freq = torch.from_numpy(inverse_frequencies(config)).float()
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars and advice."""
    logging: Any = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
