"""An inverted index that follows a folder of text, exactly once: a pipeline of two reduces."""
