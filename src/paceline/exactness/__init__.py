"""Proof by enumeration that a verifier is lossless, and the tabular models that it needs."""
