"""Measuring: speed of drafters against plain decoding, noise of logits, fidelity of precisions."""
