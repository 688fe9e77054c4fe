"""Handlers as `App` keeps them: parameters bound by their annotations, the queue or route, the retries."""
