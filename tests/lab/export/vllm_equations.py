"""vLLM's drafters on exported tensors in plain PyTorch, as its source has them: for comparison.

`LlamaForCausalLMEagle3` of vLLM 0.32 with `norm_before_residual` and `norm_before_fc` off, and
`Medusa` with `original_lm_head`. Nothing is shared with paceline, but for names in the files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

Config = dict[str, Any]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Eagle3:
    """One sequence with a cache."""

    def __init__(self, config: Config, tensors: dict[str, Tensor], embedding: Tensor) -> None:
        self.config, self.weights, self.embedding = config, tensors, embedding
        self.layer = config["transformer_layer_config"]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def draft(self, auxiliary: Tensor, tokens: Tensor, following: Tensor) -> Tensor:
        """`[1 + len(following), vocabulary]` logits.

        Args:
            auxiliary: `[rows, 3 * width]`, hidden states of the layers that the config names.
            tokens: `[rows]`, what follows each.
            following: drafted tokens, taken in one by one.
        """
        hidden = auxiliary @ self.weights["fc.weight"].T
        out, last, carried = [], len(tokens) - 1, hidden[0]
        for place, token in enumerate([*tokens.tolist(), *following.tolist()]):
            given = hidden[place] if place <= last else carried
            normed, carried = self.decoder_layer(self.embedding[token], given, place)
            if place >= last:
                out.append(normed @ self.weights["lm_head.weight"].T)
        logits, vocabulary = torch.stack(out), self.layer["vocab_size"]
        assert logits.shape[-1] == self.config["draft_vocab_size"]
        if "d2t" not in self.weights:
            assert logits.shape[-1] == vocabulary
            return logits
        out = logits.new_full((len(logits), vocabulary), float("-inf"))
        out[:, torch.arange(logits.shape[-1]) + self.weights["d2t"]] = logits
        return out

    def decoder_layer(self, embeds: Tensor, hidden: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """The normed output, and that before the norm, which the next step is given."""
        residual = hidden
        embeds = self.norm(embeds, "layers.0.input_layernorm")
        hidden = self.norm(hidden, "layers.0.hidden_norm")
        hidden = self.attention(torch.cat([embeds, hidden]), place)
        residual = residual + hidden
        hidden = self.norm(residual, "layers.0.post_attention_layernorm")
        gate = self.linear(hidden, "layers.0.mlp.gate_proj")
        up = self.linear(hidden, "layers.0.mlp.up_proj")
        residual = residual + self.linear(silu(gate) * up, "layers.0.mlp.down_proj")
        return self.norm(residual, "norm"), residual

    def attention(self, x: Tensor, place: int) -> Tensor:
        heads, size = self.layer["num_attention_heads"], self.layer["head_dim"]
        group = heads // self.layer["num_key_value_heads"]
        q, k, v = (
            self.linear(x, f"layers.0.self_attn.{kind}_proj").view(-1, size) for kind in "qkv"
        )
        self.keys.append(self.rotary(k, place).repeat_interleave(group, 0))
        self.values.append(v.repeat_interleave(group, 0))
        keys, values = torch.stack(self.keys, 1), torch.stack(self.values, 1)
        scores = torch.einsum("hd,htd->ht", self.rotary(q, place), keys) * size**-0.5
        out = torch.einsum("ht,htd->hd", scores.softmax(-1), values)
        return self.linear(out.flatten(), "layers.0.self_attn.o_proj")

    def rotary(self, x: Tensor, place: int) -> Tensor:
        """Neox style: halves of a head turn together."""
        size = x.shape[-1]
        base = self.layer["rope_parameters"]["rope_theta"]
        assert self.layer["rope_parameters"]["rope_type"] == "default"
        angles = place / base ** (torch.arange(0, size, 2, dtype=x.dtype) / size)
        first, second = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.layer["rms_norm_eps"])

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T


def medusa(config: Config, tensors: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """`[heads, vocabulary]` logits behind the last hidden state, `[width]`."""
    assert config["num_hidden_layers"] == 1
    assert config["original_lm_head"]
    out = []
    for head in range(config["num_heads"]):
        x = hidden + silu(tensors[f"blocks.{head}.layers.0.weight"] @ hidden)
        out.append(tensors["lm_head.weight"] @ x)
    logits = torch.stack(out)
    assert logits.shape[-1] == config["vocab_size"]
    return logits
