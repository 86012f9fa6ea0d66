"""Recipes to run and to copy: publishing a validated draft, and how the tiny pair was made."""
