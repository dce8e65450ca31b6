"""Drafter networks that are trained: each is written once, and runs on PyTorch and OpenVINO."""
