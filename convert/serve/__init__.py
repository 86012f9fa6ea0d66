"""Launch commands: the exact one for a draft, and a judgement of one that a user has."""
