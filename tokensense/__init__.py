"""Which tokens of a reasoning trace drive credit, how we know, and whether training on it helps."""
