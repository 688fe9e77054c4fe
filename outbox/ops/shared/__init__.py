"""Parts that several subjects share: names, text, arguments, and the sites of an engine or a store."""
