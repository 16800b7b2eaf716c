"""Named sets of conditions, and scoring under them."""
