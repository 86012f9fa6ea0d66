"""What the networks compute: the reference draft, the target, and acceptance."""
