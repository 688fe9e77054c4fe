"""Histories of real runs: how they are recorded, and how they are judged."""
