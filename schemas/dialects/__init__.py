"""How drafts are written down: names, keys, layer ids and maps of each framework."""
