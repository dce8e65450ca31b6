"""Drafters of Whisper that look at its own memory (GAD, arXiv:2203.16487), and their training."""
