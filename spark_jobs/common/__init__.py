"""What the jobs share: their command lines, who they are, rows and their ids, files that appear whole."""
