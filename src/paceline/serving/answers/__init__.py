"""Answers taken apart: reasoning, content and calls of tools, as pure functions of the text."""
