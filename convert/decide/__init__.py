"""From a reading to a plan: what a folder is, what the user says of it, and every exact rewrite."""
