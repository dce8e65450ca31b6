"""Paraformer on Whisper's encoder (arXiv:2206.08317), a drafter, and its training."""
