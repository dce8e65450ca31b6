"""Trained drafters in the layouts that other engines load."""
