"""Exactness audit: proof by enumeration, on tabular models, that verifiers are lossless."""
