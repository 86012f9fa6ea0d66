"""Recording: a target's hidden states, written down once by whatever serves it."""
