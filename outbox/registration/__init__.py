"""What `App` keeps of a handler: its parameters bound by their annotations, its queue or route, its retries."""
