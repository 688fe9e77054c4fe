"""The main job on this machine: feed, handle, drain and reconcile 20,000 transfers while the host is killed."""
