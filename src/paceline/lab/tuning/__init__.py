"""Search for the fastest configuration on a machine, for a model and prompts."""
