"""The crash playground: a browser page on which a player crashes real workers and watches the promise hold."""
