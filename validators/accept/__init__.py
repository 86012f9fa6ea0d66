"""Acceptance, counted as the serving engines count it."""
