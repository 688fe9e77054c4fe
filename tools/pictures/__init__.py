"""The drawings of the documentation: each a file of text here; `drawing`, `steps` and `plan` make SVG of it."""
