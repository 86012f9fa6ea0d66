"""A plan turned into a folder that appears complete or not at all."""
