"""What drafts were trained as by the code that trained them, where it is not what their folder says."""
