"""What is watched while exploring: the promises, held against what is written, sent and settled."""
