"""A shooting range: attempts at targets, hits, a leader board, and the sheets of paper that are full of holes."""
