"""Releases up to 0.5.5 look at this module; a single process calls nothing of it."""
