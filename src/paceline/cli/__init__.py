"""The command `paceline`: one file per command, heavy imports inside them."""
