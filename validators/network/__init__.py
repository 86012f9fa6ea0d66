"""The draft network in plain PyTorch."""
