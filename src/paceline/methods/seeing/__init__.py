"""Drafters of models that see: what each is shown of a picture (MSD, ViSpec, SpecVLM)."""
