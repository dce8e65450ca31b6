"""Models on disk: download, config, weights and tokenizers, without a framework."""
