"""What `explore` does for an application: handlings rehearsed, orders tried, findings told with their cure."""
