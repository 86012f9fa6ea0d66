"""What the serving engines compute, capture and accept, as data."""
