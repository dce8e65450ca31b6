"""Self-speculation: the target drafts with some of its own layers, on its own cache."""
