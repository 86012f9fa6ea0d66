"""Reports for people: terminal, page, plots."""
