"""A Functions host for this machine: a development tool, nothing of it is part of the product."""
