"""Long runs under faults drawn at random: what `make test` does briefly, for as long as you like."""
