"""Publishing a validated draft behind a gate."""
