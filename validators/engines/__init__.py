"""Real engines as judges: started here, or running already."""
