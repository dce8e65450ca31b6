"""Llama family in PyTorch, on flat token rows, without caches or batches.

Rows of all sequences are stacked; a callback computes attention, the one place where rows meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.config import ModelConfig, feature_layers, inverse_frequencies
from paceline.models.weights import canonical_name

# `(layer, queries [rows, heads, head_dim], keys, values [rows, kv_heads, head_dim])` to the
# attention's output `[rows, heads, head_dim]`.
Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class NamedTensors(Protocol):
    """Tensors or arrays by Hugging Face name (a state dict), or `models.weights.Weights`."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> Tensor | LogitArray: ...


class Llama(nn.Module):
    """Embedding, decoder layers, final norm and LM head of a Llama-family model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = Norm(config.hidden_size, config.norm_eps)
        if not config.tied_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._frequencies = inverse_frequencies(config)

    @classmethod
    def build(
        cls, config: ModelConfig, tensors: NamedTensors, device: torch.device, dtype: torch.dtype
    ) -> Llama:
        """Build the network in evaluation mode, converting tensor by tensor.

        Raises:
            ModelError: its layers are not those of Llama.
        """
        if not config.is_plain:
            raise ModelError(
                f"runtime torch does not run {config.family} models yet: use cpu or transformers"
            )
        with torch.device("meta"):
            network = cls(config)
        state = {}
        for name in network.state_dict():
            published = name if name.startswith("lm_head.") else f"model.{name}"
            known = published in tensors
            tensor = torch.as_tensor(tensors[published if known else canonical_name(published)])
            state[name] = tensor.to(device=device, dtype=dtype)
        network.load_state_dict(state, assign=True)
        return network.eval().requires_grad_(False)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Attend,
        features: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the hidden states after the final norm, `[rows, hidden_size]`.

        Args:
            x: `[rows, hidden_size]`, embeddings of the tokens.
            positions: int64 `[rows]`, in each token's own sequence.
            features: if given, collects the inputs of the feature layers, and the result.
        """
        cos, sin = self._rotation(positions, x.dtype)
        entered = []
        for layer in self.layers:
            entered.append(x)
            x = layer(x, cos, sin, attend)
        x = self.norm(x)
        if features is not None:
            features += [*(entered[each] for each in feature_layers(self.config.layers)), x]
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        tied = self.config.tied_embeddings
        return functional.linear(hidden, (self.embed_tokens if tied else self.lm_head).weight)

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(dtype, torch.float32)
        frequencies = torch.from_numpy(self._frequencies).to(positions.device, exact)
        angles = positions.to(exact)[:, None] * frequencies
        angles = torch.cat([angles, angles], dim=-1)[:, None]  # [rows, 1, head_dim]
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, index)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.index = index
        width, head_dim, bias = config.hidden_size, config.head_dim, config.qkv_bias
        self.shape = (-1, head_dim)
        self.q_proj = nn.Linear(width, config.heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(width, config.kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(width, config.kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * head_dim, width, bias=False)
        self.q_norm = Norm(head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = Norm(head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        queries = self.q_norm(self.q_proj(x).unflatten(-1, self.shape))
        keys = self.k_norm(self.k_proj(x).unflatten(-1, self.shape))
        values = self.v_proj(x).unflatten(-1, self.shape)
        out = attend(self.index, _rotate(queries, cos, sin), _rotate(keys, cos, sin), values)
        return cast(Tensor, self.o_proj(out.flatten(-2)))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down_proj = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gated = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return cast(Tensor, self.down_proj(gated))


class Norm(nn.Module):
    """RMS norm over the last axis, computed in float32 or better."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
