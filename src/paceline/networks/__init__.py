"""Trainable drafter networks, written once against `Ops` and run on PyTorch and OpenVINO."""
