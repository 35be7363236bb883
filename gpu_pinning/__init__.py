"""Who sits where on a machine, and proof that they stay there."""
