"""What several subjects have in common: names, text, arguments, and what an engine or a store has at hand."""
