"""HTTP requests as messages: what they say, one attempt at them, what is answered."""
