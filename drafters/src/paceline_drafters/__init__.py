"""Weights alone: paceline finds them by the entry point of this package."""
