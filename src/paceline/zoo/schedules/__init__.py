"""Schedules: when drafting and verification run, and a simulator that asks other machines."""
