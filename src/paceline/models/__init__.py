"""Models on disk: where they come from, their shape, weights and tokenizers. Needs no framework."""
