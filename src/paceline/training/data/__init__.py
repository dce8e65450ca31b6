"""Training text that the target writes itself, kept in shards on disk."""
