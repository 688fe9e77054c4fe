"""Resources as pure functions over immutable states: what a call may come to, and what may happen by itself."""
