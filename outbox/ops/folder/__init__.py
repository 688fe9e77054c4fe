"""An engine's folder: backups, inspection, salvage."""
