"""Cache-aware streaming conformer (Noroozi et al. 2024, arXiv:2312.17279)."""
