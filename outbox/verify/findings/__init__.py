"""What `explore` does for an application: handlings rehearsed, orders tried, findings explained with their cure."""
