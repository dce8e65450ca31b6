"""Small trained heads that ship with the package, one safetensors file each.

A file's metadata tells the model that it was trained for and the command that made it; what it
reached on held-out prompts stands there too. The verifiers of that name read them.
"""
