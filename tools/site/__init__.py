"""The documentation as a web site: `make docs` reads the Markdown of this repository and writes build/site."""
