"""Exact rewrites of a draft, decided from headers: the network stays the same, and each is said."""
