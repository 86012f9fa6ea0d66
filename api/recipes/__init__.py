"""What the recipes share is installed; their scripts read this repository, and stay in it."""
