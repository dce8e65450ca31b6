"""Context perception parallel decoding of words in pictures (CPPD, arXiv:2307.12270)."""
