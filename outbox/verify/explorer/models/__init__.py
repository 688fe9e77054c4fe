"""Resources as pure functions over immutable states: the outcomes of a call, and what may happen without one."""
