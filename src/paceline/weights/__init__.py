"""Trained drafters that ship with the package, one safetensors file each.

A file's metadata tells the model that it was trained for, the command that made it and what it
reached on held-out prompts. `paceline.networks.weights` reads them.
"""
