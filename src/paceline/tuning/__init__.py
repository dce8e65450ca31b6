"""Finding the configuration that is fastest on a machine, for a model and prompts."""
