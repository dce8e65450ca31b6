"""Decoders that fill a canvas: masked diffusion, block diffusion, any-order models."""
