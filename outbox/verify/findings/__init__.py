"""The steps of `explore` for an application: rehearsed handlings, tried orders, findings with their cure."""
