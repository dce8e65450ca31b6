"""Prompts for the distribution tests: repetitive, so that n-gram drafters propose; open-ended."""

from __future__ import annotations

LAW_PROMPTS: tuple[str, ...] = (
    "The dog likes the cat. The cat likes the bird. The bird likes the dog. The dog likes the",
    "one two one two three one two one two three one two",
    "Anna said that she liked the book. Ben said that he liked the film. Carla said that",
    "She saw a fox, a dog and a hen. He saw a dog, a fox and a cow. They saw a",
)
