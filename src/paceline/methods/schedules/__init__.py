"""Schedules: when the draft model works, beside the target or between its forwards."""
