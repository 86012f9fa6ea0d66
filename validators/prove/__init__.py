"""One validation: two checkpoints compared, stage by stage."""
