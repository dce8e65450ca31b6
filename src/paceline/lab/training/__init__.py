"""Training of drafter networks, acceptance heads and head previews on text that the target writes.

Offline, except `online` (distillation while serving).
"""
