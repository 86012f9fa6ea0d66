"""Moving a draft between layouts: headers to plan, plan to bytes, and the commands."""
