"""The target: its streams, its tables and its texts."""
