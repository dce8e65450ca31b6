"""Trainable drafter networks, written once against `Ops` and run by native kernels and PyTorch."""
