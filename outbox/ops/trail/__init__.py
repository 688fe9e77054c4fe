"""The causes and effects of a message."""
