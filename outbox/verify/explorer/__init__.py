"""The explorer: worlds, the steps between them, what runs in them, and the searches that walk them."""
